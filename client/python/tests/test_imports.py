"""Who imports whom in the package: no circles, and engines' rooms know the shared one but not each other."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import kvstore

PACKAGE = Path(kvstore.__file__).parent
ENGINES = {"vllm", "sglang", "lmcache", "transformers"}


def _modules() -> dict[str, Path]:
    """By name; the name of a room is its ``__init__``'s."""
    names = {path: path.relative_to(PACKAGE.parent).with_suffix("").parts for path in PACKAGE.rglob("*.py")}
    return {".".join(each).removesuffix(".__init__"): path for path, each in names.items()}


def imported(name: str, path: Path, modules: dict[str, Path]) -> set[str]:
    """The package's modules that this one imports, in functions and for type checkers too."""
    room = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = ".".join(room.split(".")[: room.count(".") + 2 - node.level]) if node.level else ""
            source = ".".join(each for each in (above, node.module) if each)
            inner = {f"{source}.{each.name}" for each in node.names}
            found |= inner & (modules.keys() | {"kvstore._kvstore"}) or {source}
    return found & modules.keys() - {name}


def edges() -> dict[str, set[str]]:
    modules = _modules()
    return {name: imported(name, path, modules) for name, path in modules.items()}


def test_imports_have_no_circle() -> None:
    found = edges()
    assert found["kvstore.client"] > {"kvstore.sets", "kvstore.spaces"}  # what the script has to see
    assert "kvstore.doors.door" in found["kvstore.vllm.tier"]
    try:
        TopologicalSorter(found).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(reversed(error.args[1])))


def test_an_engines_room_is_known_to_no_other() -> None:
    def engine(name: str) -> str:
        room = (*name.split("."), "")[1]
        return room if room in ENGINES else ""

    strangers = {
        f"{name} imports {other}"
        for name, others in edges().items()
        for other in others
        if engine(other) and engine(other) != engine(name)
    }
    assert not strangers
