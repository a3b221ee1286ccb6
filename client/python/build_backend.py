"""pip's build backend: scikit-build-core, and a source distribution that builds by itself.

The extension is compiled from C++ two folders above, and scikit-build-core packs this folder only. So a source distribution is packed from
a copy of this folder, with that C++ in ``cxx/``; its pyproject.toml names the place, and scikit-build-core itself as its backend.
Everything else is scikit-build-core's own.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from scikit_build_core import build as _build

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]

#: Parts of the repository that the extension is built from, besides this folder.
SOURCES = ["CMakeLists.txt", "LICENSE", "NOTICE", "base", "client", "cmake", "gpu", "index", "transport"]
SOURCES += ["deploy/install-dependencies.sh"]
PACKAGE = ["LICENSE", "README.md", "examples", "kvstore", "tests"]

#: Lines of pyproject.toml, in the repository and in a source distribution.
CHANGES = {
    'build-backend = "build_backend"\nbackend-path = ["."]\n': 'build-backend = "scikit_build_core.build"\n',
    'cmake.source-dir = "../.."\n': 'cmake.source-dir = "cxx"\n',
    'build-dir = "../../build/python/{wheel_tag}"\n': 'build-dir = "build/{wheel_tag}"\n',
}


def __getattr__(name: str) -> Any:
    return getattr(_build, name)


def _skipped(folder: str, names: list[str]) -> list[str]:
    skipped = [name for name in names if name == "__pycache__" or name.startswith(".")]
    if Path(folder) == HERE:  # cxx/ gets this folder's sources, the package the rest
        skipped += [name for name in names if name not in ("CMakeLists.txt", "src")]
    return skipped


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, ignore=_skipped)
    else:
        shutil.copy2(source, target)


def _stage(folder: Path) -> None:
    for name in SOURCES:
        _copy(REPOSITORY / name, folder / "cxx" / name)
    for name in PACKAGE:
        _copy((REPOSITORY if name == "LICENSE" else HERE) / name, folder / name)
    text = (HERE / "pyproject.toml").read_text()
    for before, after in CHANGES.items():
        if text.count(before) != 1:
            raise RuntimeError(f"pyproject.toml does not have these lines once: {before!r}")
        text = text.replace(before, after)
    (folder / "pyproject.toml").write_text(text)


def build_sdist(sdist_directory: str, config_settings: dict[str, list[str] | str] | None = None) -> str:
    target = str(Path(sdist_directory).resolve())
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        _stage(Path(folder))
        os.chdir(folder)
        try:
            return _build.build_sdist(target, config_settings)
        finally:
            os.chdir(before)
