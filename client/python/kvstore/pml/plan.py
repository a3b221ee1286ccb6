"""A plan: where a prompt's tokens lie, and which of them are in units that may be stored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, chain
from typing import Any, Literal

import numpy as np

from ..errors import BadRequest
from .lengths import Tokenizer
from .placing import Kind, Piece, Placed, Placing
from .prompt import Prompt
from .schema import Union, joined

__all__ = ["Plan", "Range", "Unit", "plan"]


@dataclass(frozen=True)
class Unit:
    """What the model encodes together: a module's own text, or that of a scaffold's modules. Equal tokens and positions make the same K
    and V, in whatever prompt. ``positions`` begin with 0 and increase; gaps are where parameters and other modules lie.
    """

    name: str
    tokens: tuple[int, ...] = field(repr=False)
    positions: tuple[int, ...] = field(repr=False)
    members: tuple[str, ...]


@dataclass(frozen=True)
class Range:
    """Tokens of one text or argument, at consecutive positions. With a unit, they are ``unit.tokens[unit_begin:][:len(tokens)]``; without,
    they have to be computed. ``name`` is the module's path, "path:parameter" for an argument, "" for the user's text.
    """

    kind: Kind
    name: str
    tokens: tuple[int, ...] = field(repr=False)
    positions: tuple[int, ...] = field(repr=False)
    unit: Unit | None = None
    unit_begin: int = 0


@dataclass(frozen=True)
class Plan:
    """Ranges in the prompt's order, which is that of positions. The last may be stored text: whoever runs the plan has to compute the last
    token again, to get the next one.
    """

    ranges: tuple[Range, ...]

    @cached_property
    def tokens(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        return _joined([range_.tokens for range_ in self.ranges])

    @cached_property
    def positions(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        return _joined([range_.positions for range_ in self.ranges])

    @property
    def token_count(self) -> int:
        return len(self.tokens)

    @property
    def length(self) -> int:
        """The last position + 1."""
        return self.ranges[-1].positions[-1] + 1 if self.ranges else 0

    @cached_property
    def units(self) -> tuple[Unit, ...]:
        """Each once, in the order of their first ranges."""
        return tuple({id(range_.unit): range_.unit for range_ in self.ranges if range_.unit is not None}.values())


def plan(prompt: Prompt, tokenizer: Tokenizer, *, layout: Literal["schema", "prompt"] = "schema") -> Plan:
    """Places a prompt's tokens. An imported module of the schema's top level begins at its place in the schema, or behind all before if they
    reach beyond (``layout="schema"``), or directly behind all before (``layout="prompt"``, in which positions have no gaps but those
    within modules). The user's text begins behind the room of the module before.

    ``tokenizer``: called with a text it gives the tokens; or it has ``encode()`` as those of Hugging Face. Each text is tokenised alone, those of
    the schema once for all prompts: a tokenizer that is changed later has to be another object.

    Raises PmlError if an argument is longer than its parameter, and BadRequest for what is no token or no layout.
    """
    if layout not in ("schema", "prompt"):
        raise BadRequest(f"layout is {layout!r}; allowed are 'schema' and 'prompt'")
    placing = Placing(prompt, tokenizer, is_compact=layout == "prompt")
    units: dict[int, tuple[Unit, int]] = {}  # by the piece's index, with that of its first token in the unit
    own: dict[str, list[int]] = {path: [] for path in placing.modules}  # each module's pieces, by index
    for index, piece in enumerate(placing.pieces):
        if piece.kind == "module":
            own[piece.name].append(index)
    for name, members in _groups(prompt, placing.modules):
        indexes = sorted(chain.from_iterable(own[path] for path in members))
        units.update(_unit(name, members, {index: placing.pieces[index] for index in indexes}))
    return Plan(tuple(_range(piece, *units.get(index, (None, 0))) for index, piece in enumerate(placing.pieces)))


def _groups(prompt: Prompt, modules: dict[str, Placed]) -> Iterator[tuple[str, list[str]]]:
    """The modules that are encoded together, and each of the others alone. Those that are not cached are in none."""
    order = {path: index for index, path in enumerate(modules)}
    covered: set[str] = set()
    for name, paths in _scaffolds(prompt, modules):
        is_free = all(path in modules and path not in covered for path in paths)
        if is_free and len({modules[path].shift for path in paths}) == 1:
            covered.update(paths)
            yield name, sorted(paths, key=order.__getitem__)
    for path, placed in modules.items():
        if placed.is_cached and path not in covered:
            yield path, [path]


def _scaffolds(prompt: Prompt, modules: dict[str, Placed]) -> Iterator[tuple[str, list[str]]]:
    """The schema's, then those of modules whose unions name a member."""
    for scaffold in prompt.schema.scaffolds:
        yield scaffold.name, [use.path for use in scaffold.uses]
    around = [("", prompt.schema.modules[""]), *((path, placed.module) for path, placed in modules.items())]
    for path, module in around:
        members = [joined(path, item.scaffold) for item in module.items if isinstance(item, Union) and item.scaffold]
        if path and module.is_cached:
            members.insert(0, path)
        if len(members) > 1:
            yield path or prompt.schema.name, members


def _unit(name: str, members: list[str], pieces: dict[int, Piece]) -> Iterator[tuple[int, tuple[Unit, int]]]:
    """The unit of these pieces, for each of them. None without a piece: modules without text."""
    if not pieces:
        return
    ranges = [_range(piece) for piece in pieces.values()]
    first = ranges[0].positions[0]
    tokens = tuple(chain.from_iterable(range_.tokens for range_ in ranges))
    positions = tuple(position - first for range_ in ranges for position in range_.positions)
    unit = Unit(name, tokens, positions, tuple(members))
    begins = accumulate((len(piece.tokens) for piece in pieces.values()), initial=0)
    yield from ((index, (unit, begin)) for index, begin in zip(pieces, begins, strict=False))


def _range(piece: Piece, unit: Unit | None = None, unit_begin: int = 0) -> Range:
    positions = tuple(range(piece.begin, piece.begin + len(piece.tokens)))
    return Range(piece.kind, piece.name, piece.tokens, positions, unit, unit_begin)


def _joined(parts: Sequence[Sequence[int]]) -> np.ndarray[Any, np.dtype[np.int64]]:
    made = np.fromiter(chain.from_iterable(parts), np.int64, sum(map(len, parts)))
    made.setflags(write=False)  # one array for all who ask
    return made
