"""Write the README's picture, and one for phones: ``make docs-reference`` runs it.

Its colours are those of the reports, light or dark as the reader's page is.
"""

from __future__ import annotations

import re
from html import escape
from pathlib import Path

from labelveil.common.report.figures import INK, MUTED, PAPER
from labelveil.common.report.figures import MAIN as BLUE
from labelveil.common.report.figures import THIRD as GREEN

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
Rows = tuple[tuple[str, ...], ...]

# Three events of a run of the demo.
SOLD = (("event", "price"), ("3", "8,062"), ("4", "2,840"), ("5", "645"))
SENT = (("event", "sent"), ("3", "5,017"), ("4", "−13,611"), ("5", "−62,471"))
LEARNT = (
    ("event", "stone", "predicted"),
    ("3", "1.22 ct, premium, G", "8,742"),
    ("4", "0.77 ct, very good, H", "3,141"),
    ("5", "0.32 ct, very good, G", "792"),
)


REACHED = "94 % of the variance, at ε = 1"
BOUND = "98 % by boosted trees on true labels"
BOLD = 'font-weight="bold"'


def text(x: float, y: float, words: str, colour: str = INK, size: int = 14, more: str = "") -> str:
    return f'<text x="{x}" y="{y}" font-size="{size}" fill="{colour}" {more}>{escape(words)}</text>'


def box(
    x: float, y: float, width: float, height: float, colour: str, title: str, note: str
) -> list[str]:
    """Return a party: a frame with its name and what it has."""
    return [
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="14" fill="{colour}"'
        f' fill-opacity="0.07" stroke="{colour}" stroke-opacity="0.6"/>',
        text(x + 20, y + 32, title, colour, 18, BOLD),
        text(x + 20, y + 54, note, MUTED),
    ]


def table(x: float, y: float, columns: tuple[float, ...], rows: Rows) -> list[str]:
    """Return a table; columns are given by their offsets, and the first row is their head."""
    lines = [f'<path d="M{x} {y + 8}h{columns[-1] + 66}" stroke="{MUTED}" stroke-opacity="0.5"/>']
    for index, cells in enumerate(rows):
        for offset, cell in zip(columns, cells, strict=True):
            lines.append(text(x + offset, y + 28 * index, cell, INK if index else MUTED))
    return lines


def dark() -> str:
    """Return rules that give every light colour of the reports its dark counterpart."""
    css = (ROOT / "common" / "report" / "page.css").read_text("utf-8")
    light, night, *_ = (
        dict(re.findall(r"--(\w+): (#\w+)", part))
        for part in re.findall(r":root \{(.*?)\}", css, re.S)
    )
    rules = [
        f'[{name}="{colour}"]{{{name}:{night[meaning]}}}'
        for meaning, colour in light.items()
        for name in ("fill", "stroke")
    ]
    return f"<style>@media (prefers-color-scheme:dark){{{''.join(rules)}}}</style>"


def drawn(width: int, height: int, *parts: str) -> str:
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}"'
        f' height="{height}" font-family="Helvetica, Arial, sans-serif">'
    )
    paper = f'<rect width="{width}" height="{height}" rx="14" fill="{PAPER}"/>'
    return "\n".join([opening, dark(), paper, *parts, "</svg>", ""])


def wide() -> str:
    """Return the picture with the parties side by side."""
    return drawn(
        *(920, 300),
        *box(16, 16, 216, 268, BLUE, "labels party", "a jeweller knows prices"),
        *table(36, 112, (0, 80), SOLD),
        text(36, 238, "A ledger adds up", MUTED),
        text(36, 258, "everything that leaves.", MUTED),
        text(264, 92, "one message, once", INK, 16, BOLD),
        text(264, 114, "ε-DP in each label", MUTED),
        f'<path d="M244 134H528" stroke="{INK}" stroke-width="2"/>',
        f'<path d="M528 128l14 6-14 6z" fill="{INK}"/>',
        *table(300, 166, (0, 80), SENT),
        *box(550, 16, 354, 268, GREEN, "features party", "a catalogue knows the stones"),
        *table(570, 112, (0, 62, 238), LEARNT),
        text(570, 238, REACHED, GREEN, 15, BOLD),
        text(570, 260, BOUND, MUTED),
    )


def narrow() -> str:
    """Return the picture with one party above the other, to be read on a phone."""
    return drawn(
        *(380, 604),
        *box(8, 8, 364, 190, BLUE, "labels party", "a jeweller knows prices"),
        *table(28, 92, (0, 80), SOLD),
        text(200, 120, "A ledger adds up", MUTED),
        text(200, 142, "all that leaves.", MUTED),
        f'<path d="M48 208v130" stroke="{INK}" stroke-width="2"/>',
        f'<path d="M42 338l6 14 6-14z" fill="{INK}"/>',
        *table(76, 226, (0, 60), SENT),
        text(216, 254, "one message, once", INK, 15, BOLD),
        text(216, 276, "ε-DP in each label", MUTED),
        *box(8, 362, 364, 234, GREEN, "features party", "a catalogue knows the stones"),
        *table(28, 446, (0, 50, 218), LEARNT),
        text(28, 560, REACHED, GREEN, 15, BOLD),
        text(28, 582, BOUND, MUTED),
    )


PICTURES = {"overview.svg": wide, "overview-narrow.svg": narrow}

if __name__ == "__main__":
    for name, picture in PICTURES.items():
        (IMAGES / name).write_text(picture(), encoding="utf-8")
