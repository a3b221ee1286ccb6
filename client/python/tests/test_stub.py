"""The stub of the extension module: the types are written by hand, as arguments are any arrays; everything else is what the module has."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import kvstore

Shape = dict[str, "list[str] | None"]


def _parameters(function: ast.FunctionDef) -> list[str]:
    given = function.args
    by_place = ["_" for each in given.posonlyargs if each.arg != "self"]
    return by_place + [each.arg for each in (*given.args, *given.kwonlyargs) if each.arg != "self"]


def _members(body: list[ast.stmt], owner: str) -> Iterator[tuple[str, list[str] | None]]:
    for each in body:
        if isinstance(each, ast.ClassDef):
            yield owner + each.name, None
            yield from _members(each.body, f"{owner}{each.name}.")
        elif isinstance(each, ast.FunctionDef):
            if each.name == "__init__" or not each.name.startswith("__"):
                is_property = any(isinstance(by, ast.Name) and by.id == "property" for by in each.decorator_list)
                is_setter = any(isinstance(by, ast.Attribute) for by in each.decorator_list)
                if not is_setter:
                    yield owner + each.name, None if is_property else _parameters(each)
        else:
            targets = each.targets if isinstance(each, ast.Assign) else [getattr(each, "target", None)]
            yield from (
                (owner + name.id, None)
                for name in targets
                if isinstance(name, ast.Name) and name.id not in ("T", "__version__")
            )


def _shape(stub: str) -> Shape:
    return dict(_members(ast.parse(stub).body, ""))


def test_the_stub_has_the_names_and_parameters_of_the_extension(tmp_path):
    pytest.importorskip("nanobind.stubgen", reason="nanobind is not installed")
    made = tmp_path / "made.pyi"
    arguments = ["-m", "nanobind.stubgen", "-q", "-P", "-m", "kvstore._kvstore", "-o", str(made)]
    path = os.pathsep.join(sys.path)
    subprocess.run([sys.executable, *arguments], check=True, env={**os.environ, "PYTHONPATH": path})
    ours = _shape(Path(kvstore.__file__).with_name("_kvstore.pyi").read_text())
    theirs = _shape(made.read_text())
    assert len(theirs) > 300
    assert ours.keys() == theirs.keys()
    assert ours == theirs
