"""PmlError, and places in a text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from ..errors import BadRequest

__all__ = ["NOWHERE", "Place", "PmlError", "fail", "shown", "shown_tag"]

_SHOWN_CHARACTERS_MAX = 60


class PmlError(BadRequest):
    """A schema or a prompt breaks a rule at ``line`` and ``column``, counted from 1 in characters. ``reason`` is the message without them:
    what was found, and what was expected.
    """

    def __init__(self, line: int, column: int, reason: str) -> None:
        super().__init__(line, column, reason)
        self.line, self.column, self.reason = line, column, reason

    def __str__(self) -> str:
        return f"line {self.line}, column {self.column}: {self.reason}"


@dataclass(frozen=True)
class Place:
    line: int
    column: int


#: The place of an object that was not parsed.
NOWHERE = Place(0, 0)


def fail(place: Place, found: str, expected: str) -> NoReturn:
    raise PmlError(place.line, place.column, f"found {found}; expected {expected}")


def shown(value: str) -> str:
    """A value for a message, cut to a length that a log bears."""
    return repr(value if len(value) <= _SHOWN_CHARACTERS_MAX else value[:_SHOWN_CHARACTERS_MAX] + "...")


def shown_tag(tag: str) -> str:
    return f"<{tag if len(tag) <= _SHOWN_CHARACTERS_MAX else tag[:_SHOWN_CHARACTERS_MAX] + '...'}>"
