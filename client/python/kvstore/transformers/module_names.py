"""Names of the blocks of a module that stands alone: what shapes their bytes, and nothing else."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..namespaces import Namespace
from .model_identity import ModelIdentity

__all__ = ["block_names", "module_namespace"]


def module_namespace(identity: ModelIdentity, block_size: int, fields: dict[str, object]) -> Namespace:
    """Never a prefix's: exact blocks are of kind ``chain``."""
    own = {
        "kind": "set",
        "block_bytes_max": identity.shape.layout(block_size).store_block_bytes,
        "x.kind": "module",
        "x.block_size": block_size,
    }
    return Namespace(identity.fields | own | fields)


def block_names(
    namespace: Namespace, tokens: Sequence[int], positions: Sequence[int], block_size: int
) -> npt.NDArray[np.uint8]:
    """The names ``[blocks, 32]`` of a unit's blocks, the last of which may be partial.

    A token of a unit sees those before it in the unit, so a name binds all the unit's tokens up to its block's end and their positions
    in the unit, which is encoded at position 0. Neighbours in a prompt and the prompt's positions shape no byte.
    """
    ids = np.asarray(tokens, dtype="<u4")
    places = np.asarray(positions, dtype="<i8")
    name = hashlib.sha256(f"module at position 0\n{namespace.text}".encode()).digest()
    names = []
    for start in range(0, len(ids), block_size):
        own = slice(start, start + block_size)
        # A token has 12 bytes, so that the length tells how many there are.
        name = hashlib.sha256(name + ids[own].tobytes() + places[own].tobytes()).digest()
        names.append(name)
    return np.frombuffer(b"".join(names), dtype=np.uint8).reshape(-1, 32)
