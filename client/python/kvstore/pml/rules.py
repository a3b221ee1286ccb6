"""Rules of a whole schema: names, imports, cycles, scaffolds."""

from __future__ import annotations

import re
from typing import NoReturn

from .errors import Place, fail, shown
from .markup import DEPTH_MAX
from .schema import LENGTH_MAX, LENGTH_RULE, Child, Import, Module, Parameter, Scaffold, Schema, Union

__all__ = ["check", "walk"]

#: Names are tags and attributes of prompts. ":" and "/" divide the parts of a path.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,127}")
#: A prompt's element is around those of its modules.
MODULE_DEPTH_MAX = DEPTH_MAX - 1


def check(schema: Schema) -> None:
    """Raises PmlError."""
    _check_name(schema.name, "schema", schema.place)
    _check_names(Module("", schema.items))  # first: modules are found by their names from here on
    for module in schema.modules.values():
        for item in module.items:
            if isinstance(item, Import) and (not item.path or item.path not in schema.modules):
                fail(item.place, f"an import of {shown(item.path)}", "the path of a module of this schema")
            if isinstance(item, Union):
                _check_union(item)
    _Heights(schema).check()
    names = set()
    for scaffold in schema.scaffolds:
        _check_name(scaffold.name, "scaffold", scaffold.place)
        if scaffold.name in names:
            fail(scaffold.place, f"a second scaffold {shown(scaffold.name)}", "one of each name")
        names.add(scaffold.name)
        _check_scaffold(schema, scaffold)


def walk(schema: Schema, path: str) -> list[tuple[str, Child]]:
    """The steps of a path that a prompt may take: the definition of each module left, and the child entered. Shorter if one is unknown."""
    steps = []
    definition = ""
    for name in path.split("/"):
        child = schema.modules[definition].children.get(name)
        if child is None:
            break
        steps.append((definition, child))
        definition = child.definition(definition)
    return steps


def _check_name(name: str, kind: str, place: Place) -> None:
    if not _NAME.fullmatch(name):
        rule = "1 to 128 letters (a-z, A-Z), digits, '_', '-' and '.', with a letter or '_' first"
        fail(place, f"the {kind} name {shown(name)}", rule)


def _check_names(module: Module) -> None:
    children: set[str] = set()
    for child in module.each_child():
        name = child.item.name
        if isinstance(child.item, Module):
            _check_name(name, "module", child.item.place)
        if name in children:
            fail(child.item.place, f"a second module {shown(name)}", "one of each name within a module")
        children.add(name)
        if isinstance(child.item, Module):
            _check_names(child.item)
    parameters: set[str] = set()
    for item in module.items:
        if isinstance(item, Parameter):
            _check_name(item.name, "parameter", item.place)
            if item.name in parameters:
                fail(item.place, f"a second parameter {shown(item.name)}", "one of each name within a module")
            if not 1 <= item.length <= LENGTH_MAX:
                fail(item.place, f"length={shown(str(item.length))}", LENGTH_RULE)
            parameters.add(item.name)


def _check_union(union: Union) -> None:
    if not union.members:
        fail(union.place, "a union without members", "<module> in <union>")
    members = {member.name: member for member in union.members}
    if union.scaffold is not None and union.scaffold not in members:
        fail(union.place, f"scaffold={shown(union.scaffold)}", "the name of a member of the union")
    if union.scaffold is not None and not members[union.scaffold].is_cached:
        fail(union.place, f"scaffold={shown(union.scaffold)}, which is not cached", "a member that is cached")


class _Heights:
    """How deep modules are nested, imports included. A module within itself is a cycle."""

    def __init__(self, schema: Schema) -> None:
        self._modules = schema.modules
        self._heights: dict[str, int] = {}
        self._path: list[str] = []  # of the modules under way, from the outside in

    def check(self) -> None:
        for definition, module in self._modules.items():
            self._height(definition, module.place)

    def _height(self, definition: str, place: Place) -> int:
        if definition in self._heights:
            return self._heights[definition]
        if definition in self._path:
            cycle = " > ".join([*self._path[self._path.index(definition) :], definition])
            fail(place, f"the cycle {cycle}", "modules that do not contain themselves")
        if len(self._path) > MODULE_DEPTH_MAX:
            self._fail(place)
        self._path.append(definition)
        height = 0
        for child in self._modules[definition].each_child():
            height = max(height, 1 + self._height(child.definition(definition), child.item.place))
            if height > MODULE_DEPTH_MAX:
                self._fail(child.item.place)
        self._path.pop()
        self._heights[definition] = height
        return height

    def _fail(self, place: Place) -> NoReturn:
        fail(place, f"over {MODULE_DEPTH_MAX} nested modules", "at most that many, with those of imports")


def _check_scaffold(schema: Schema, scaffold: Scaffold) -> None:
    if len(scaffold.uses) < 2:
        fail(scaffold.place, f"{len(scaffold.uses)} modules in a scaffold", "two or more")
    seen: set[str] = set()
    chosen: dict[tuple[str, int], str] = {}  # by the module around and the index of the item there
    for use in scaffold.uses:
        steps = walk(schema, use.path)
        names = use.path.split("/")
        if len(steps) < len(names):
            fail(use.place, f"the path {shown(use.path)}", "the path of a module of this schema")
        if use.path in seen:
            fail(use.place, f"{shown(use.path)} a second time", "each module once")
        seen.add(use.path)
        for depth, (_, child) in enumerate(steps):
            other = chosen.setdefault(("/".join(names[:depth]), child.item_index), names[depth])
            if other != names[depth]:
                fail(use.place, f"{shown(names[depth])} beside {shown(other)}", "one member of a union")
        definition, last = steps[-1]
        if not schema.modules[last.definition(definition)].is_cached:
            fail(use.place, f"{shown(use.path)}, which is not cached", "modules that are cached")
