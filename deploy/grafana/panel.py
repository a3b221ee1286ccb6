"""A dashboard's panels, and their JSON for Grafana."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

Json = dict[str, Any]
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
COLUMNS = 24

# A number's unit in Grafana (s, bytes, Bps, percentunit for 0 to 1, cps for counts a second, ops, short), and its colours, each with
# the lowest value of that colour; None: from the start.
Scale = tuple[str, list[tuple[str, float | None]]]


def good_below(unit: str, bad: float, worse: float | None = None) -> Scale:
    return unit, [("green", None), ("orange", bad), *([("red", worse)] if worse is not None else [])]


def good_from(unit: str, good: float, fair: float | None = None) -> Scale:
    return unit, [("red", None), *([("orange", fair)] if fair is not None else []), ("green", good)]


NEVER = good_below("cps", 1e-9)


@dataclass(frozen=True)
class Panel:
    """A question, and the curves that answer it."""

    title: str
    scale: Scale
    queries: str | dict[str, str]  # an expression, or several, by the ends of their legends
    about: str = ""  # meaning of the answer, and actions
    legend: str = "{{instance}}"
    words: dict[str, str] = field(default_factory=dict)  # for values that are better shown as words

    kind: ClassVar[str] = "timeseries"
    width: ClassVar[int] = 12
    height: ClassVar[int] = 8
    look: ClassVar[Json] = {"custom": {"fillOpacity": 8, "showPoints": "never", "thresholdsStyle": {"mode": "dashed"}}}
    options: ClassVar[Json] = {"legend": {"displayMode": "list"}, "tooltip": {"mode": "multi", "sort": "desc"}}

    def to_json(self, number: int, place: dict[str, int]) -> Json:
        unit, steps = self.scale
        thresholds = {"mode": "absolute", "steps": [{"color": color, "value": at} for color, at in steps]}
        defaults: Json = {"unit": unit, "min": 0, "thresholds": thresholds}
        if self.words:
            texts = {value: {"text": text, "index": i} for i, (value, text) in enumerate(self.words.items())}
            defaults["mappings"] = [{"type": "value", "options": texts}]
        queries = {"": self.queries} if isinstance(self.queries, str) else self.queries
        legends = [f"{self.legend} {end}".strip() for end in queries]
        targets = [
            {"refId": chr(ord("A") + i), "datasource": DATASOURCE, "expr": expr, "legendFormat": legend}
            for i, (legend, expr) in enumerate(zip(legends, queries.values(), strict=True))
        ]
        return {
            "id": number,
            "type": self.kind,
            "title": self.title,
            "description": self.about,
            "datasource": DATASOURCE,
            "gridPos": place,
            "fieldConfig": {"defaults": defaults | self.look, "overrides": []},
            "options": self.options,
            "targets": targets,
        }


class Stat(Panel):
    """One number, large enough to read from afar."""

    kind, width, height = "stat", 6, 4
    look: ClassVar[Json] = {"color": {"mode": "thresholds"}}
    options: ClassVar[Json] = {
        "colorMode": "background",
        "graphMode": "area",
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
    }


def places(panels: list[Panel]) -> Iterator[dict[str, int]]:
    """From left to right; a new row where a panel does not fit, or is of another height."""
    x = y = row_height = 0
    for panel in panels:
        if x + panel.width > COLUMNS or (x > 0 and panel.height != row_height):
            x, y = 0, y + row_height
        row_height = panel.height
        yield {"x": x, "y": y, "w": panel.width, "h": panel.height}
        x += panel.width
