"""The examples of the pages about Python and of the README work as stated, and the example programs run."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT


def python_blocks(file: Path) -> list[str]:
    if not file.exists():
        pytest.skip("without the repository")
    return re.findall(r"^```python\n(.*?)^```", file.read_text(), re.M | re.S)


def run_blocks(name: str, endpoint: str = "") -> None:
    blocks = python_blocks(ROOT / name)
    assert blocks
    code = "\n".join(blocks).replace("unix:///tmp/kvstore.sock", endpoint)
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # Of transformers: that generate() goes beyond the length of the model's training, which a sink cache is for.
    assert not [line for line in done.stderr.splitlines() if not line.startswith("[transformers]")]


@pytest.mark.parametrize("name", ["docs/python.md", "README.md"])
def test_the_examples_of_a_page(node, name):
    run_blocks(name, node.endpoint)


@pytest.mark.parametrize(
    ("name", "module"),
    [("docs/kernels.md", "numpy"), ("docs/paged-cache.md", "numpy"), ("docs/engines/transformers.md", "transformers")],
)
def test_the_examples_of_a_page_without_a_node(name, module):
    pytest.importorskip(module, reason=f"{module} is not installed")
    run_blocks(name)


def test_the_tests_that_a_page_names_are_there():
    folder = ROOT / "client/python/tests"
    pages = [ROOT / "docs/engines.md", ROOT / "docs/papers.md", *(ROOT / "docs/engines").glob("*.md")]
    if not pages[0].exists():
        pytest.skip("without the repository")
    files = [*folder.glob("test_*.py"), *(folder / "engines").glob("test_*.py")]
    known = {each.name for each in files}
    tests = set(re.findall(r"^def (test_\w+)", "\n".join(each.read_text() for each in files), re.M))
    named = re.findall(r"`(test_\w+(?:\.py)?)(\.\.\.)?(?:\[\w+\])?`", "\n".join(page.read_text() for page in pages))
    assert len(named) > 50
    for name, is_cut in named:
        if name in ("test_storage_manager", "test_l2_adapter", "test_remote"):
            continue  # modes of LMCache's own check
        assert any(each.startswith(name) for each in tests) if is_cut else name in known | tests, name


def test_the_tests_in_cpp_that_the_papers_page_names_are_there():
    page = ROOT / "docs/papers.md"
    if not page.exists():
        pytest.skip("without the repository")
    named = set(re.findall(r"`(\w+Test)`", page.read_text()))
    sources = [
        each.read_text() for folder in ("gpu", "index", "store") for each in (ROOT / "tests" / folder).glob("*.cc")
    ]
    known = set(re.findall(r"^TEST(?:_F|_P)?\((\w+),", "\n".join(sources), re.M))
    assert len(named) > 10
    assert named - known == set()


def run_example(name: str, *arguments: str) -> str:
    file = ROOT / "client/python/examples" / name
    if not file.exists():
        pytest.skip("without the repository")
    done = subprocess.run(
        [sys.executable, str(file), *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_quickstart(node):
    assert run_example("quickstart.py", node.endpoint) == "0 of 40 blocks were cached, 40 stored\n"
    assert run_example("quickstart.py", node.endpoint) == "40 of 40 blocks were cached, 0 stored\n"


def test_chat(node):
    pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("transformers", reason="transformers is not installed")
    arguments = ["--endpoint", node.endpoint, "--turns", "2", "--tokens", "100", "--answer", "4"]
    first = run_example("chat.py", *arguments).splitlines()
    second = run_example("chat.py", *arguments).splitlines()
    assert [line.split()[-1] for line in (*first[1:3], *second[1:3])] == ["yes"] * 4
    assert [int(line.split()[2]) for line in first[1:3]] == [0, 96]
    assert [int(line.split()[2]) for line in second[1:3]] == [96, 192]


def test_with_and_without_cache(node, tmp_path):
    pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("transformers", reason="transformers is not installed")
    picture = tmp_path / "figure.png"
    arguments = ["--prompt", "70", "--new", "4", "--plot", str(picture), "--endpoint", node.endpoint]
    lines = run_example("with_and_without_cache.py", *arguments).splitlines()
    assert "random weights" in lines[0]
    rows = {line[:24].strip(): line[24:].split() for line in lines[4:8]}
    assert list(rows) == ["no cache", "the model's own cache", "kvstore, first process", "kvstore, second process"]
    assert [row[-1] for row in rows.values()] == ["yes"] * 4
    assert [int(row[0]) for row in rows.values()] == [0, 0, 0, 64]
    bytes_of_token = 8 * 2 * 4 * 64 * 4  # layers, K and V, heads, features, bytes
    assert float(rows["the model's own cache"][5]) == round(73 * bytes_of_token / 2**20, 1)
    assert float(rows["no cache"][5]) == 0
    if importlib.util.find_spec("matplotlib"):
        assert picture.read_bytes().startswith(b"\x89PNG")
    else:
        assert "matplotlib is not installed" in lines[-1]
