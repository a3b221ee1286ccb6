"""What tells models apart, for the namespaces of engines' connectors."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any

__all__ = ["computed", "digest", "short", "weights_digest"]

#: What a configuration says besides what the model computes.
_NOT_COMPUTED = ("_name_or_path", "name_or_path", "transformers_version", "_commit_hash")
#: Of each file of weights: its first bytes, which name all tensors, and as many samples of so many bytes.
_HEAD_BYTES = 1 << 16
_SAMPLE_COUNT = 64
_SAMPLE_BYTES = 4096


def computed(config: Mapping[str, Any]) -> dict[str, Any]:
    """What of a ``config.json`` says what the model computes."""
    return {k: v for k, v in config.items() if k not in _NOT_COMPUTED}


def weights_digest(folder: str) -> str:
    """Tells the weights in two folders apart: names, sizes, headers and samples of each file, not all of their bytes."""
    found = hashlib.sha256()
    for name in sorted(os.listdir(folder)):
        if not name.endswith((".safetensors", ".bin", ".pt", ".gguf")):
            continue
        with open(os.path.join(folder, name), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            found.update(f"{name} {size}\n".encode())
            found.update(file.read(_HEAD_BYTES))
            for i in range(_SAMPLE_COUNT):
                file.seek(size * i // _SAMPLE_COUNT)
                found.update(file.read(_SAMPLE_BYTES))
    return found.hexdigest()


def digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def short(text: str) -> str:
    """As a field of a record can have it."""
    return text if len(text) <= 1000 else "sha256 " + hashlib.sha256(text.encode()).hexdigest()
