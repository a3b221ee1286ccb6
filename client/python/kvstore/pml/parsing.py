"""A schema from its text."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from .errors import fail, shown, shown_tag
from .markup import Element, Text, attributes_of, read
from .rules import check
from .schema import LENGTH_RULE, Import, Module, Parameter, Scaffold, Schema, Union, Use


def parse_schema(text: str) -> Schema:
    """Raises PmlError."""
    root = read(text, "schema")
    name = attributes_of(root, ("name",))["name"]
    scaffolds = [_scaffold(item) for item in root.items if isinstance(item, Element) and item.tag == "scaffold"]
    others = [item for item in root.items if isinstance(item, Text) or item.tag != "scaffold"]
    items = [_item(item, "schema", {"module": _module, "union": _union}) for item in others]
    schema = Schema(name, tuple(items), tuple(scaffolds), root.place)
    check(schema)
    return schema


def _item(item: Element | Text, around: str, parsers: Mapping[str, Callable[[Element], Any]]) -> Any:
    if isinstance(item, Text):
        return item
    if item.tag not in parsers:
        allowed = ["text", *(f"<{tag}>" for tag in parsers), *(["<scaffold>"] if around == "schema" else [])]
        fail(item.place, f"{shown_tag(item.tag)} in <{around}>", " or ".join((", ".join(allowed[:-1]), allowed[-1])))
    return parsers[item.tag](item)


def _module(element: Element) -> Module:
    parsers = {"module": _module, "union": _union, "parameter": _parameter, "import": _import}
    values = attributes_of(element, ("name",), ("cache",))
    cache = values.get("cache", "true")
    if cache not in ("true", "false"):
        fail(element.place, f"cache={shown(cache)}", 'cache="true" or cache="false"')
    items = tuple(_item(item, "module", parsers) for item in element.items)
    return Module(values["name"], items, cache == "true", element.place)


def _union(element: Element) -> Union:
    scaffold = attributes_of(element, (), ("scaffold",)).get("scaffold")
    return Union(tuple(map(_module, _only(element, "module"))), scaffold, element.place)


def _parameter(element: Element) -> Parameter:
    values = attributes_of(element, ("name", "length"))
    length = values["length"]
    if not re.fullmatch("[0-9]{1,9}", length):
        fail(element.place, f"length={shown(length)}", LENGTH_RULE)
    _only(element)
    return Parameter(values["name"], int(length), element.place)


def _import(element: Element) -> Import:
    _only(element)
    return Import(attributes_of(element, ("name",))["name"], element.place)


def _scaffold(element: Element) -> Scaffold:
    name = attributes_of(element, ("name",))["name"]
    uses = []
    for each in _only(element, "use"):
        _only(each)
        uses.append(Use(attributes_of(each, ("name",))["name"], each.place))
    return Scaffold(name, tuple(uses), element.place)


def _only(element: Element, tag: str | None = None) -> list[Element]:
    """The element's elements, all of which have to have this tag. Text is refused."""
    elements = element.elements()
    for each in elements:
        if each.tag != tag:
            fail(each.place, f"{shown_tag(each.tag)} in <{element.tag}>", f"<{tag}>" if tag else "an empty element")
    return elements
