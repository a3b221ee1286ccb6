"""Namespaces: everything that affects a block's bytes besides its tokens (docs/namespace-record.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ._fields import field_text
from ._kvstore import Record, extra_digest, hashes

__all__ = ["Namespace", "extra_digest", "hashes"]


class Namespace(Record):
    """A namespace record. Equal records share blocks, others never do.

    Required fields are ``model``, ``block_size`` (tokens of a block) and ``block_bytes``. Add all else that affects the bytes:
    ``revision``, ``dtype``, ``layout``, ``rope``, ``lora``, ... Unknown fields are refused; ``x_name`` as a keyword, or ``"x.name"`` in a
    mapping, is the caller's own. ``kind="set"`` makes a namespace of blocks that stand alone: ``block_bytes_max`` then bounds their sizes,
    without block_size and block_bytes. A value is text or a number; ``dtype`` may be NumPy's or torch's. Letters beyond ASCII are escaped
    as in a URL (``mod%C3%A8le``).
    """

    __slots__ = ()

    def __init__(self, fields: Mapping[str, object] | None = None, /, **more: object) -> None:
        merged = dict(fields or {})
        for name, value in more.items():
            merged["x." + name[2:] if name.startswith("x_") else name] = value
        super().__init__({name: field_text(name, value) for name, value in merged.items() if value is not None})

    @classmethod
    def from_text(cls, text: str) -> Namespace:
        """From a record's canonical text."""
        made = cls.__new__(cls)
        Record.__init__(made, text)
        return made

    @property
    def fields(self) -> dict[str, str]:
        """All fields, by name."""
        return dict(line.split("=", 1) for line in self.text.splitlines())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Namespace) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"Namespace({self.fields!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (Namespace.from_text, (self.text,))
