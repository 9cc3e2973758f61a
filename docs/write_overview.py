"""Write docs/images/overview.svg, the README's picture: ``make docs-reference`` runs it."""

from __future__ import annotations

from html import escape
from pathlib import Path

from common.report.figures import INK, MUTED
from common.report.figures import MAIN as BLUE
from common.report.figures import THIRD as GREEN

PICTURE = Path(__file__).with_name("images") / "overview.svg"
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


def text(x: float, y: float, words: str, colour: str = INK, size: int = 14, more: str = "") -> str:
    return f'<text x="{x}" y="{y}" font-size="{size}" fill="{colour}" {more}>{escape(words)}</text>'


def box(x: float, width: float, colour: str, title: str, note: str) -> list[str]:
    """Return a party: a frame with its name and what it has."""
    return [
        f'<rect x="{x}" y="16" width="{width}" height="268" rx="14" fill="{colour}"'
        f' fill-opacity="0.07" stroke="{colour}" stroke-opacity="0.6"/>',
        text(x + 20, 48, title, colour, 18, 'font-weight="bold"'),
        text(x + 20, 70, note, MUTED),
    ]


def table(x: float, y: float, columns: tuple[float, ...], rows: Rows) -> list[str]:
    """Return a table; columns are given by their offsets, and the first row is their head."""
    lines = [f'<path d="M{x} {y + 8}h{columns[-1] + 66}" stroke="{MUTED}" stroke-opacity="0.5"/>']
    for index, cells in enumerate(rows):
        for offset, cell in zip(columns, cells, strict=True):
            lines.append(text(x + offset, y + 28 * index, cell, INK if index else MUTED))
    return lines


def picture() -> str:
    """Return the picture as SVG, for light pages and dark ones."""
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 920 300" width="920" height="300"'
        ' font-family="Helvetica, Arial, sans-serif">',
        '<rect width="920" height="300" rx="14" fill="#ffffff"/>',
        *box(16, 216, BLUE, "labels party", "a jeweller knows prices"),
        *table(36, 112, (0, 80), SOLD),
        text(36, 238, "A ledger adds up", MUTED),
        text(36, 258, "everything that leaves.", MUTED),
        text(264, 92, "one message, once", INK, 16, 'font-weight="bold"'),
        text(264, 114, "ε-DP in each label", MUTED),
        f'<path d="M244 134H528" stroke="{INK}" stroke-width="2"/>',
        f'<path d="M528 128l14 6-14 6z" fill="{INK}"/>',
        *table(300, 166, (0, 80), SENT),
        *box(550, 354, GREEN, "features party", "a catalogue knows the stones"),
        *table(570, 112, (0, 62, 238), LEARNT),
        text(570, 238, "93 % of the variance, at ε = 1", GREEN, 15, 'font-weight="bold"'),
        text(570, 260, "98 % by the same network on true labels", MUTED),
        "</svg>",
    ]
    return "\n".join([*parts, ""])


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
