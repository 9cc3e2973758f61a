"""The architecture page and its picture, made from the imports: ``python -m tests.architecture``.

A room is a package, or a module that stands between packages. An arrow goes from a room to what it
imports, unless a longer way down says it already.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from labelveil.common.report.figures import MAIN, MUTED, SERIES, THIRD
from tests import core
from tests.drawing import Box, Wing, draw
from tests.imports import (
    PACKAGES,
    ROOT,
    Graph,
    direct,
    floors,
    grouped,
    module_graph,
    modules,
    summary,
)

PAGE = ROOT / "docs" / "architecture.md"
PICTURE = ROOT / "docs" / "images" / "architecture.svg"
BEGIN, END = "<!-- begin: written by make architecture -->", "<!-- end -->"
CORE = "<!-- begin: the core, written by make architecture -->"

FACE = "labelveil.*"
"""The modules that lie flat in ``labelveil``: what users import, and where programs start."""

GROUND = "common.*"
"""The modules that lie flat in ``common``, on which everything stands."""

FLAT = {"labelveil": FACE, "common": GROUND}

BETWEEN = ("labelveil.children", "labelveil.lazy")
"""Modules that stand between packages, and so are rooms."""

PURPOSES = {
    FACE: "Labels stay private: what a notebook imports, ``import labelveil as lv``.",
    GROUND: "Errors, randomness, files and the console: what every room may use.",
}

WINGS = {
    FACE: Wing("labelveil", "the public face", MUTED, 20, 1340, 0, 0),
    "labelveil": Wing("labelveil", "the neutral program", SERIES[4], 20, 1340, 2, 5),
    "label_party": Wing("label_party", "the labels party", MAIN, 20, 670, 7, 15),
    "feature_party": Wing("feature_party", "the features party", THIRD, 690, 1340, 7, 15),
    "common": Wing("common", "what all of them stand on", SERIES[3], 20, 1340, 17, 23, True),
}


def wing_of(room: str) -> str:
    """Return the part of the house that a room is in."""
    return room if room in WINGS else room.partition(".")[0]


def room_of(module: str) -> str | None:
    """Return the room that a module is in; None for the package around rooms."""
    packages = {name for name, path in modules().items() if path.name == "__init__.py"}
    package, _, rest = module.partition(".")
    if not rest:
        return FLAT[package] if package == "labelveil" else None
    room = f"{package}.{rest.partition('.')[0]}"
    return room if room in {*packages, *BETWEEN} else FLAT.get(package, room)


@cache
def rooms() -> Graph:
    """Return which room imports which."""
    placed = {name: room for name in modules() if (room := room_of(name)) is not None}
    return grouped(module_graph(), placed)


def members(room: str) -> list[str]:
    """Return the modules in a room."""
    return [name for name in modules() if room_of(name) == room]


def purpose(room: str) -> str:
    """Return a room's purpose, from its docstring."""
    return PURPOSES.get(room) or summary(modules()[room])


def storeys() -> dict[str, int]:
    """Return the floor that each room is drawn on, counted from the top.

    As high as it can be; a room beside the way from the commands, just above what it imports.
    """
    above = floors({
        room: frozenset(other for other in rooms() if room in rooms()[other]
                        and wing_of(other) == wing_of(room))
        for room in rooms()
    })  # fmt: skip
    found = {room: WINGS[wing_of(room)].first + above[room] for room in rooms()}
    for room, targets in rooms().items():
        inside = [found[target] for target in targets if wing_of(target) == wing_of(room)]
        aside = wing_of(room) == "feature_party" and not above[room] and "commands" not in room
        if aside and inside:
            found[room] = min(inside) - 1
    return found


def picture() -> str:
    """Return the picture as SVG."""
    boxes = {}
    for room, floor in storeys().items():
        title = room.removeprefix(f"{wing_of(room)}.")
        count = len(members(room))
        note = "a module" if count == 1 else f"{count} modules"
        if room == GROUND:
            title = " · ".join(name.removeprefix("common.") for name in members(room))
        width = max(112, 8 * len(title) + 24)
        boxes[room] = Box(wing_of(room), floor, title, note, purpose(room), width)
    arrows = [(room, target) for room, targets in direct(rooms()).items() for target in targets]
    return draw(WINGS, boxes, arrows)


def tables() -> str:
    """Return the rooms of every wing, from the top, each with its purpose."""
    order = sorted(rooms(), key=lambda room: (storeys()[room], room))
    lines = []
    for package in PACKAGES:
        inside = [room for room in order if room.split(".")[0] == package]
        lines += ["", f"| `{package}` | purpose |", "|---|---|"]
        lines += [f"| `{room.removeprefix(f'{package}.')}` | {purpose(room)} |" for room in inside]
    return "\n".join(lines[1:])


def page(text: str) -> str:
    """Return the page with its tables replaced."""
    for begin, table in ((CORE, core.page()), (BEGIN, tables())):
        before, _, rest = text.partition(begin)
        _, _, after = rest.partition(END)
        text = f"{before}{begin}\n{table}\n{END}{after}"
    return text


def write(path: Path, text: str) -> None:
    """Write a file and say so."""
    path.write_text(text)
    print(f"{path.relative_to(ROOT)}")


if __name__ == "__main__":
    write(PICTURE, picture())
    write(PAGE, page(PAGE.read_text()))
