"""All blocks of a node at one moment, collected while they change."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from .source import Change, Source, Space

_Key = tuple[Space, str, bytes]


class Held:
    """A list of blocks, updated by changes: each names one block, and a block's last change counts."""

    def __init__(self) -> None:
        self._of: dict[_Key, Change] = {}

    def __len__(self) -> int:
        return len(self._of)

    def __contains__(self, key: object) -> bool:
        return key in self._of

    def apply(self, changes: Iterable[Change]) -> None:
        for each in changes:
            key = (each.space, each.tier, each.name)
            if each.is_stored:
                self._of[key] = each
            else:
                self._of.pop(key, None)

    def changes(self) -> Iterator[Change]:
        """As if all had just been stored: a block after its parent, chains in one piece."""
        below: defaultdict[_Key, list[Change]] = defaultdict(list)
        first: list[Change] = []
        for each in self._of.values():
            above = (each.space, each.tier, each.parent) if each.parent is not None else None
            if above is not None and above in self._of:
                below[above].append(each)
            else:
                first.append(each)
        for top in first:
            waiting = [top]
            while waiting:
                each = waiting.pop()
                yield each
                waiting += below.get((each.space, each.tier, each.name), ())


@dataclass(frozen=True)
class Look:
    held: Held
    life: str
    #: The number of the following change.
    next: int
    since: list[Change]


def look(source: Source, life: str = "", start: int | None = None) -> Look | None:
    """The node's blocks, and the changes since number ``start`` of that ``life``; by default, since this began. None: some changes were
    lost meanwhile, or the node restarted; try again, without a number. Raises NodeAway.

    The parts of the list are of different moments. Applying all changes since the first part, in order, gives one moment.
    """
    held = Held()
    at: str | None = ""
    while at is not None:
        part = source.blocks(at)
        if life and part.life != life:
            return None
        life = part.life
        if start is None:
            start = part.next
        held.apply(part.changes)
        at = part.at
    assert start is not None
    since: list[Change] = []
    while True:
        told = source.events(start, life)
        if told.has_gap:
            return None
        held.apply(told.changes)
        since += told.changes
        if told.next == start:
            return Look(held, life, start, since)
        start = told.next
