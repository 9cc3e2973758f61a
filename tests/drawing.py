"""A picture of a layered graph: boxes on floors, and curves that go round the boxes between them.

Every arrow that passes a floor has a point on it. Points and boxes of one wing and floor are
ordered by the mean of what they are joined to, and set as near to it as their widths allow.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from runpy import run_path

from labelveil.common.report.figures import INK, MUTED, PAPER
from tests.imports import ROOT

DARK = run_path(str(ROOT / "docs" / "write_overview.py"))["dark"]()
FLOOR = 74
BOX = 36
GAP = 16
POINT = 14
MARGIN = 4
SWEEPS = 400
STIFF = 6
"""How much harder a point is drawn to another one than to a room."""


@dataclass(frozen=True)
class Wing:
    """A part of the house: some floors, from ``left`` to ``right``."""

    title: str
    subtitle: str
    colour: str
    left: float
    right: float
    first: int
    last: int
    titled_below: bool = False


@dataclass
class Box:
    """A room, or an arrow's point on a floor that it passes (``title`` is empty)."""

    wing: str
    floor: int
    title: str = ""
    note: str = ""
    hint: str = ""
    width: float = POINT
    x: float = 0.0
    above: list[Box] = field(default_factory=list, repr=False)
    below: list[Box] = field(default_factory=list, repr=False)


def draw(
    wings: Mapping[str, Wing], rooms: Mapping[str, Box], arrows: Iterable[tuple[str, str]]
) -> str:
    """Return the picture as SVG; arrows carry the names of their ends."""
    routes = {}
    points: list[Box] = []
    for source, target in sorted(arrows):
        start, end = rooms[source], rooms[target]
        passed = [
            Box(_wing_at(wings, start.wing, end.wing, floor), floor)
            for floor in range(start.floor + 1, end.floor)
        ]
        route = [start, *passed, end]
        for upper, lower in pairwise(route):
            upper.below.append(lower)
            lower.above.append(upper)
        routes[source, target] = route
        points += passed
    rows = _place(wings, [*rooms.values(), *points])
    for route in sorted(routes.values(), key=len):
        _straighten(route, rows)
    return _svg(wings, rooms, routes)


def _wing_at(wings: Mapping[str, Wing], start: str, end: str, floor: int) -> str:
    return start if wings[start].first <= floor <= wings[start].last else end


def _place(wings: Mapping[str, Wing], boxes: Sequence[Box]) -> Mapping[int, Sequence[Box]]:
    """Set every box; return each floor's, from left to right."""
    rows: dict[tuple[str, int], list[Box]] = defaultdict(list)
    for box in boxes:
        rows[box.wing, box.floor].append(box)
    for (wing, _), row in rows.items():
        _spread(row, wings[wing], [(wings[wing].left + wings[wing].right) / 2] * len(row))
    order = sorted(rows, key=lambda key: key[1])
    for sweep in range(SWEEPS):
        for key in order if sweep % 2 == 0 else reversed(order):
            row = rows[key]
            wanted = {id(box): _wanted(box, sweep) for box in row}
            if sweep < SWEEPS * 2 // 3:
                row.sort(key=lambda box: wanted[id(box)])
            _spread(row, wings[key[0]], [wanted[id(box)] for box in row])
    found: dict[int, list[Box]] = defaultdict(list)
    for box in sorted(boxes, key=lambda box: box.x):
        found[box.floor].append(box)
    return found


def _straighten(route: Sequence[Box], rows: Mapping[int, Sequence[Box]]) -> None:
    """Take the bends out of an arrow, where the boxes beside it leave room."""
    start = 1
    while start < len(route) - 1:
        for stop in range(len(route) - 1, start, -1):
            spans = [_room_for(box, rows[box.floor]) for box in route[start:stop]]
            low, high = max(span[0] for span in spans), min(span[1] for span in spans)
            if low <= high:
                break
        else:
            raise AssertionError("a point fits where it is")
        wanted = route[stop].x if stop == len(route) - 1 else route[start - 1].x
        for box in route[start:stop]:
            box.x = round(min(max(wanted, low), high), 1)
        start = stop


def _room_for(box: Box, row: Sequence[Box]) -> tuple[float, float]:
    """How far a point may move between its neighbours."""
    place = next(index for index, other in enumerate(row) if other is box)
    low, high = float("-inf"), float("inf")
    if place:
        low = row[place - 1].x + (row[place - 1].width + box.width) / 2 + MARGIN
    if place + 1 < len(row):
        high = row[place + 1].x - (row[place + 1].width + box.width) / 2 - MARGIN
    return min(low, box.x), max(high, box.x)


def _wanted(box: Box, sweep: int) -> float:
    """Return the mean of what a box is joined to: of one side at first, of both sides later.

    An arrow's points hold on to each other, so that it runs straight.
    """
    joined = (box.above, box.below)[sweep % 2] if sweep < SWEEPS // 2 else box.above + box.below
    joined = joined or box.above or box.below or [box]
    weights = [1 if box.title or other.title else STIFF for other in joined]
    wanted = zip(weights, joined, strict=True)
    return sum(weight * other.x for weight, other in wanted) / sum(weights)


def _spread(row: Sequence[Box], wing: Wing, wanted: Sequence[float]) -> None:
    """Set a row, in its order, as near to where it wants to be as widths allow.

    Least squares under ``x_{i+1} >= x_i + needed``: subtract what is needed, and average
    neighbours until nothing falls (isotonic regression).
    """
    offsets = [0.0]
    for one, other in pairwise(row):
        offsets.append(offsets[-1] + (one.width + other.width) / 2 + GAP)
    blocks: list[tuple[float, int]] = []
    for want, offset in zip(wanted, offsets, strict=True):
        total, count = want - offset, 1
        while blocks and blocks[-1][0] / blocks[-1][1] > total / count:
            more, others = blocks.pop()
            total, count = total + more, count + others
        blocks.append((total, count))
    low = wing.left + GAP + row[0].width / 2
    high = wing.right - GAP - row[-1].width / 2 - offsets[-1]
    means = [total / count for total, count in blocks for _ in range(count)]
    for box, mean, offset in zip(row, means, offsets, strict=True):
        box.x = round(min(max(mean, low), max(low, high)) + offset, 1)


def _top(floor: int) -> float:
    return 60 + floor * FLOOR


def _svg(
    wings: Mapping[str, Wing],
    rooms: Mapping[str, Box],
    routes: Mapping[tuple[str, str], Sequence[Box]],
) -> str:
    width = max(wing.right for wing in wings.values()) + 24
    height = max(_top(wing.last) for wing in wings.values()) + FLOOR
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}"'
        f' width="{width:g}" height="{height:g}" font-family="Helvetica, Arial, sans-serif">',
        DARK,
        f'<rect width="100%" height="100%" fill="{PAPER}"/>',
    ]
    for wing in wings.values():
        top, bottom = _top(wing.first) - 42, _top(wing.last) + BOX + 16
        parts.append(
            f'<rect x="{wing.left:g}" y="{top:g}" width="{wing.right - wing.left:g}"'
            f' height="{bottom - top:g}" rx="14" fill="{wing.colour}" fill-opacity="0.08"/>'
        )
    out, into = _ports(routes)
    for (source, target), route in routes.items():
        colour = wings[route[0].wing].colour
        path = _curve(route, out[source, target], into[source, target])
        x, y = into[source, target], _top(route[-1].floor)
        parts += [
            f'<path class="arrow" data-from="{source}" data-to="{target}" d="{path}" fill="none"'
            f' stroke="{colour}" stroke-width="1.5" stroke-opacity="0.65"/>',
            f'<path d="M{x - 4:g} {y - 7:g}h8l-4 7z" fill="{colour}"/>',
        ]
    for wing in wings.values():
        top = _top(wing.last) + BOX if wing.titled_below else _top(wing.first) - 20
        parts.append(
            f'<text x="{wing.left + 16:g}" y="{top:g}" font-size="15" font-weight="bold"'
            ' paint-order="stroke" stroke="{PAPER}" stroke-width="4" stroke-linejoin="round"'
            f' fill="{wing.colour}">{escape(wing.title)}'
            f'<tspan dx="10" font-size="12" font-weight="normal" fill="{MUTED}">'
            f"{escape(wing.subtitle)}</tspan></text>"
        )
    for name, box in rooms.items():
        x, y = box.x - box.width / 2, _top(box.floor)
        parts.append(
            f'<g class="room" data-room="{name}"><title>{escape(box.hint)}</title>'
            f'<rect x="{x:g}" y="{y:g}" width="{box.width:g}" height="{BOX}" rx="7"'
            f' fill="{PAPER}" stroke="{wings[box.wing].colour}" stroke-width="1.5"/>'
            f'<text x="{box.x:g}" y="{y + 16:g}" font-size="13" text-anchor="middle"'
            f' fill="{INK}">{escape(box.title)}</text>'
            f'<text x="{box.x:g}" y="{y + 29:g}" font-size="10" text-anchor="middle"'
            f' fill="{MUTED}">{escape(box.note)}</text></g>'
        )
    return "\n".join([*parts, "</svg>", ""])


def _ports(
    routes: Mapping[tuple[str, str], Sequence[Box]],
) -> tuple[dict[tuple[str, str], float], dict[tuple[str, str], float]]:
    """Where each arrow leaves its room, and where it arrives: in the order of where it goes on."""
    out: dict[tuple[str, str], float] = {}
    into: dict[tuple[str, str], float] = {}
    for end, neighbour, ports in ((0, 1, out), (-1, -2, into)):
        by_room = defaultdict(list)
        for ends, route in routes.items():
            by_room[ends[end]].append((route[neighbour].x, ends, route[end]))
        for arrows in by_room.values():
            arrows.sort(key=lambda arrow: arrow[:2])
            room = arrows[0][2]
            step = min(18.0, 0.8 * room.width / len(arrows))
            for index, (_, ends, _) in enumerate(arrows):
                ports[ends] = round(room.x + (index - (len(arrows) - 1) / 2) * step, 1)
    return out, into


def _curve(route: Sequence[Box], start: float, end: float) -> str:
    """Down from the room, straight past the boxes of each floor, to just above the target."""
    x, y = start, _top(route[0].floor) + BOX
    parts = [f"M{x:g} {y:g}"]
    for box in route[1:]:
        last = box is route[-1]
        to, top = (end, _top(box.floor) - 5) if last else (box.x, _top(box.floor) - 2)
        middle = (top - y) / 2
        parts.append(f"C{x:g} {y + middle:g} {to:g} {top - middle:g} {to:g} {top:g}")
        x, y = to, top
        if not last:
            y = _top(box.floor) + BOX + 2
            parts.append(f"V{y:g}")
    return "".join(parts)
