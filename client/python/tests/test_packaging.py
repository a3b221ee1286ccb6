"""The source distribution contains all that building needs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from conftest import ROOT

HERE = ROOT / "client/python"


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not (HERE / "build_backend.py").exists():
        pytest.skip("without the repository")
    pytest.importorskip("scikit_build_core", reason="scikit-build-core is not installed")
    folder = tmp_path_factory.mktemp("sdist")
    code = "import build_backend, sys; print(build_backend.build_sdist(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)], cwd=HERE, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    with tarfile.open(folder / done.stdout.split()[-1]) as archive:
        archive.extractall(folder)
    (made,) = (each for each in folder.iterdir() if each.is_dir())
    return made


def test_every_file_that_is_included_is_there(unpacked):
    cxx = unpacked / "cxx"
    compiled = [each for each in cxx.rglob("*") if each.suffix in (".cc", ".h", ".c") and "cuda" not in each.parts]
    assert len(compiled) > 100
    missing = set()
    for file in compiled:
        for name in re.findall(r'^#include "([^"]+)"', file.read_text(), re.M):
            generated = name.endswith("_generated.h")
            if not (generated or (cxx / name).exists() or (file.parent / name).exists()):
                missing.add(f"{file.relative_to(cxx)}: {name}")
    # The tools are not built from here, and use parts of the node.
    assert not [each for each in missing if not each.startswith("client/tools/")], sorted(missing)


def test_it_has_nothing_that_is_not_a_source(unpacked):
    names = [str(each.relative_to(unpacked)) for each in unpacked.rglob("*") if each.is_file()]
    for name in names:
        assert not re.search(r"__pycache__|\.(so|pyc|o|a)$|_cache/", name)
    for needed in ("kvstore/py.typed", "kvstore/_kvstore.pyi", "README.md", "LICENSE", "tests/conftest.py", "PKG-INFO"):
        assert needed in names
    assert not (unpacked / "src").exists()  # once, in cxx/


def test_cmake_finds_everything_in_it(unpacked, tmp_path):
    for tool in ("cmake", "c++", "flatc"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    pytest.importorskip("nanobind", reason="nanobind is not installed")
    arguments = ["cmake", "-S", str(unpacked / "cxx"), "-B", str(tmp_path), "-DKV_ONLY_PYTHON=ON"]
    done = subprocess.run(
        [*arguments, f"-DPython_EXECUTABLE={sys.executable}", "-DCMAKE_BUILD_TYPE=Release"],
        capture_output=True,
        text=True,
        timeout=300,
        env={name: value for name, value in os.environ.items() if name != "LD_PRELOAD"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
