"""A prompt: which modules of a schema, with which arguments, and the user's text between."""

from __future__ import annotations

from dataclasses import dataclass, field

from .errors import NOWHERE, Place, fail, shown, shown_tag
from .markup import Element, Text, attributes_of, element_lines, read, text_lines
from .schema import Child, Module, Schema

__all__ = ["Argument", "Imported", "Prompt", "parse_prompt"]

_NAMES_SHOWN_MAX = 8


@dataclass(frozen=True)
class Argument:
    name: str
    text: str


@dataclass(frozen=True)
class Imported:
    """A module in a prompt, with those within, in the schema's order, as are the arguments."""

    name: str
    arguments: tuple[Argument, ...] = ()
    items: tuple[Imported, ...] = ()
    place: Place = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True)
class Prompt:
    """Made by :func:`parse_prompt`. ``str()`` is its canonical text."""

    schema: Schema
    items: tuple[Text | Imported, ...]

    def __str__(self) -> str:
        return "\n".join(element_lines("prompt", [("schema", self.schema.name)], map(_lines, self.items))) + "\n"


def parse_prompt(text: str, schema: Schema) -> Prompt:
    """Raises PmlError."""
    root = read(text, "prompt")
    name = attributes_of(root, ("schema",))["schema"]
    if name != schema.name:
        fail(root.place, f"a prompt for the schema {shown(name)}", f"one for {shown(schema.name)}")
    return Prompt(schema, _items(schema, root, ""))


def _items(schema: Schema, around: Element, definition: str) -> tuple[Text | Imported, ...]:
    """What stands within an element that imports a module written at ``definition``."""
    module = schema.modules[definition]
    items: list[Text | Imported] = []
    seen: dict[int, str] = {}
    for each in around.items:
        if isinstance(each, Text):
            items.append(each)
            continue
        child = module.children.get(each.tag)
        if child is None:
            fail(
                each.place,
                f"{shown_tag(each.tag)} in {shown_tag(around.tag)}",
                _one_of(list(module.children), "element"),
            )
        _check_order(seen, child, each, is_root=not definition)
        inner = child.definition(definition)
        arguments = _arguments(schema.modules[inner], each)
        each.elements()  # there is no room for text in a module
        within = tuple(item for item in _items(schema, each, inner) if isinstance(item, Imported))
        items.append(Imported(each.tag, arguments, within, each.place))
    return tuple(items)


def _arguments(module: Module, element: Element) -> tuple[Argument, ...]:
    for name in element.attributes:
        if name not in module.parameters:
            what = f"the argument {shown(name)} of {shown_tag(element.tag)}"
            fail(element.place, what, _one_of(list(module.parameters), "argument"))
    names = [name for name in module.parameters if name in element.attributes]
    return tuple(Argument(name, element.attributes[name]) for name in names)


def _check_order(seen: dict[int, str], child: Child, element: Element, *, is_root: bool) -> None:
    """``seen``: the tags before, by the item's index in the module around. At the top level any order is allowed."""
    tag = shown_tag(element.tag)
    other = seen.get(child.item_index)
    if other == element.tag:
        fail(element.place, f"{tag} a second time", "each module once")
    if other is not None:
        fail(element.place, f"{tag} beside {shown_tag(other)}", "one member of a union")
    if seen and not is_root:
        last = next(reversed(seen))
        if child.item_index < last:
            fail(element.place, f"{tag} after {shown_tag(seen[last])}", "the modules in the schema's order")
    seen[child.item_index] = element.tag


def _one_of(names: list[str], kind: str) -> str:
    if not names:
        return "no " + kind
    cut = ", ..." if len(names) > _NAMES_SHOWN_MAX else ""
    return ("one of " if len(names) > 1 else "") + ", ".join(names[:_NAMES_SHOWN_MAX]) + cut


def _lines(item: Text | Imported) -> list[str]:
    if isinstance(item, Text):
        return text_lines(item.text)
    arguments = [(argument.name, argument.text) for argument in item.arguments]
    return element_lines(item.name, arguments, map(_lines, item.items))
