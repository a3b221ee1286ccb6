"""Namespaces: everything that affects a block's bytes besides its tokens (docs/namespace-record.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from . import _kvstore
from ._arrays import Buffer, Hashes, Numbers
from ._fields import field_text

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["Namespace", "extra_digest", "hashes"]


class Namespace:
    """A namespace record. Equal records share blocks, others never do.

    Required fields are ``model``, ``block_size`` (tokens of a block) and ``block_bytes``. Add all else that affects the bytes:
    ``revision``, ``dtype``, ``layout``, ``rope``, ``lora``, ... Unknown fields are refused; ``x_name`` as a keyword, or ``"x.name"`` in a
    mapping, is the caller's own. ``kind="set"`` makes a namespace of blocks that stand alone: ``block_bytes_max`` then bounds their sizes,
    without block_size and block_bytes. A value is text or a number; ``dtype`` may be NumPy's or torch's. Letters beyond ASCII are escaped
    as in a URL (``mod%C3%A8le``).
    """

    __slots__ = ("_record",)

    def __init__(self, fields: Mapping[str, object] | None = None, /, **more: object) -> None:
        merged = dict(fields or {})
        for name, value in more.items():
            merged["x." + name[2:] if name.startswith("x_") else name] = value
        self._record = _kvstore.Record.from_fields(
            {name: field_text(name, value) for name, value in merged.items() if value is not None}
        )

    @classmethod
    def from_text(cls, text: str) -> Namespace:
        """From a record's canonical text."""
        made = cls.__new__(cls)
        made._record = _kvstore.Record.parse(text)
        return made

    @property
    def text(self) -> str:
        """The canonical text: sorted ``key=value`` lines."""
        return self._record.text

    @property
    def block_bytes(self) -> int:
        """Bytes of every block."""
        return self._record.block_bytes

    @property
    def block_size(self) -> int:
        """Tokens of every block."""
        return self._record.block_size

    @property
    def is_set(self) -> bool:
        """Whether the blocks stand alone (``kind="set"``), instead of forming prefixes."""
        return self._record.is_set

    @property
    def id(self) -> bytes:
        """The first 16 bytes of the text's SHA-256."""
        return self._record.id

    @property
    def fields(self) -> dict[str, str]:
        """All fields, by name."""
        return dict(line.split("=", 1) for line in self.text.splitlines())

    def hash_chain(
        self, tokens: Numbers, *, extra: Buffer | None = None, after: bytes | None = None
    ) -> npt.NDArray[np.uint8]:
        """The hashes of the full blocks of ``tokens``: uint8 ``[len(tokens) // block_size, 32]``.

        ``extra`` is hashed into each of these blocks besides its tokens (an image's digest, say). ``after`` is the hash of the block
        before, to continue a chain. A list works; an array of uint32 is used as it is.
        """
        return self._record.hash_chain(tokens, extra, after)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Namespace) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"Namespace({self.fields!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (Namespace.from_text, (self.text,))


def hashes(of: Hashes | Sequence[Buffer]) -> npt.NDArray[np.uint8]:
    """An engine's own block hashes, of any length, as an array of uint8 ``[n, 32]``: converts once instead of in each call."""
    return _kvstore.hashes(of)


def extra_digest(extra: Buffer) -> bytes:
    """The 16 bytes that stand for extra data hashed into a block besides its tokens; 16 zeros for no data."""
    return _kvstore.extra_digest(extra)
