"""Names of blocks made from an engine's own hashes: connectors store under them, and routers ask for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import BadRequest


class BlockNames:
    """A block has a name for each group of layers, and for each part of its kv heads."""

    groups: Sequence[Any]
    part_count: int

    def name(self, block_hash: bytes, group: int, epoch: bytes = b"") -> bytes:
        """The engine's hash, with the group if there are several, and the epoch of weights and adapter."""
        if len(self.groups) == 1 and not epoch:
            return block_hash
        return block_hash + group.to_bytes(4, "big") + epoch

    def part_name(self, name: bytes, part: int) -> bytes:
        return name if self.part_count == 1 else name + b"/" + part.to_bytes(4, "big")

    def part_names(self, hashes: Sequence[bytes], epoch: bytes = b"") -> list[bytes]:
        """:meth:`part_name` of :meth:`name`, as [group, part, block]: a call per name would take an engine's scheduler too long."""
        names: list[bytes] = []
        for group in range(len(self.groups)):
            for part in range(self.part_count):
                suffix = self.part_name(self.name(b"", group, epoch), part)
                names += [block_hash + suffix for block_hash in hashes] if suffix else hashes
        return names


def weights_suffix(epoch: Any) -> bytes:
    """A request's weights_epoch in its blocks' names. Raises BadRequest."""
    if epoch is None:
        return b""
    if type(epoch) is not int or not 0 <= epoch < 1 << 64:
        raise BadRequest(f"weights_epoch is {epoch!r}, allowed are whole numbers from 0")
    return b"w" + epoch.to_bytes(8, "big")


def adapter_suffix(content: bytes) -> bytes:
    """The same for what an adapter is, in 16 bytes."""
    return b"l" + content
