"""Names that would be code, a path, a format, a pattern or a mark, if anything took them for it."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

LONG = "x" * 10_000


def names(canary: Path) -> list[str]:
    """More than fifty names; where one is executed a file ``canary`` appears."""
    touch = f"touch '{canary}'"
    return [
        # Python, shells
        f'a"+str(__import__("os").system("{touch}"))+"b',
        f"a'+str(__import__('os').system(\"{touch}\"))+'b",
        f'a\\"+str(__import__("os").system("{touch}"))+"b',
        f"x);__import__('os').system(\"{touch}\")#",
        f"$({touch})", f"`{touch}`", f"; {touch} #", f"| {touch}",
        "self", "class", "__class__", "--config", "-q",
        # formats and templates
        "{0.__class__.__init__.__globals__}", "{}", "%(x)s %n %s %", "${x}", "{{ 7*7 }}{% for %}",
        # HTML, SVG, Markdown
        f"<script>fetch('{canary}')</script>", "<img src=x onerror=alert(1)>", "--><b>",
        'id="x" #0b63a5 xmlns="y"', "](javascript:alert(1)) [x", "| a | b |", "# heading",
        "**bold** _it_ ~~s~~ `c`", "- item", "&amp;",
        # patterns
        "^.*$", "*", "^x$", "^[$", "a.b", "a", "[!a]*", "?",
        # terminals and logs
        "[red]red[/red]", "[/]", ":bomb:", "\x1b[31mred\x1b]0;title\x07", "\x9b31m\x7f",
        "line\nlevel=error forged=1", "tab\tand\rreturn", "\u202eoverride", "\u2028",
        # tables, mathematics, SQL, paths
        "=cmd|' /C calc'!A0", "@SUM(A1)", "$x^2$ \\frac{1}{0}", "'; DROP TABLE events; --", '"',
        "../../etc/passwd", "/", "..", "\\", "NUL\x00byte",
        # what our own programs and files call things
        "input_0", "prediction", "probabilities", "served/place_of_input_1", "columns_0", "NaN",
        "", "\u00e9", "e\u0301", LONG,
    ]  # fmt: skip


class Page(HTMLParser):
    """What a browser makes of a page: its elements, their attributes, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        self.attributes.update(name for name, _ in attrs)

    def handle_data(self, data: str) -> None:
        self.text += data
