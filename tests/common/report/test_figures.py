"""One style: a page's figures take its colours, and files have the same ones."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from xml.etree import ElementTree

import matplotlib.image
import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from labelveil.common.errors import ConfigError
from labelveil.common.report.figures import (
    MAIN,
    PAPER,
    SERIES,
    epsilon_axis,
    level,
    logarithmic,
    picture,
    responsive_figure,
)
from tests.hostile import Page


def _draw(figure: Figure, narrow: bool = False) -> None:
    del narrow
    axes = figure.subplots()
    axes.plot([0.5, 1, 4], [1, 20, 3000], linewidth=6)
    level(axes, 40, "constant")
    logarithmic(axes, "y", "error")
    epsilon_axis(axes, [4, 1, 0.5])


def test_a_page_decides_the_colours_of_its_figures() -> None:
    drawn = responsive_figure("one", "a line", _draw, wide_height=2, narrow_height=2)
    assert "var(--main)" in drawn
    assert not re.search(r"#[0-9a-f]{6}", drawn)
    for words in ("ε (logarithmic)", "error (logarithmic)", "constant", "0.5", "1,000"):
        assert f">{words}<" in drawn
    assert "mathdefault" not in drawn


def test_a_file_has_the_page_s_light_colours(tmp_path: Path) -> None:
    with picture(tmp_path / "one.png", 4, 3) as figure:
        _draw(figure)
    pixels = matplotlib.image.imread(tmp_path / "one.png")[:, :, :3]
    assert pixels[0, 0] == pytest.approx(to_rgb(PAPER), abs=0.01)
    assert (np.abs(pixels - to_rgb(MAIN)).max(axis=2) < 0.02).sum() > 500
    assert len(set(SERIES)) == len(SERIES)


def test_a_file_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    missing = tmp_path / "missing" / "one.png"
    with pytest.raises(ConfigError, match="cannot be written"), picture(missing, 1, 1):
        pass


def test_a_name_in_a_picture_stays_as_it_is() -> None:
    """What makes ids and colours the page's own changes no text."""
    names = 'id="x" #0b63a5', "</text><script>", "$x^2$ \\frac{", 'url(#a) href="#b"', 'xmlns="y"'

    def draw(figure: Figure, narrow: bool) -> None:
        del narrow
        figure.subplots().set_yticks(range(len(names)), names)

    drawn = responsive_figure("one", names[1], draw, wide_height=2, narrow_height=2)
    page = Page(str(drawn))
    for name in names:
        assert name in page.text
    assert "script" not in page.elements


def test_a_figure_is_one_picture_without_stray_text() -> None:
    drawn = responsive_figure("one", "a < line", _draw, wide_height=2, narrow_height=2)
    pictures = re.findall(r"<svg.*?</svg>", drawn, flags=re.DOTALL)
    assert len(pictures) == 2
    for each in pictures:
        root = ElementTree.fromstring(each.replace("xlink:href", "href"))
        assert root.attrib["aria-label"] == "a < line"
        assert not (root.text or "").strip()


def test_an_interrupt_waits_for_a_drawing_which_it_would_abort(tmp_path: Path) -> None:
    """Matplotlib reads fonts by Python that FreeType calls: an exception there ends the process."""
    drawn = list[bool]()

    def draw(figure: Figure, narrow: bool) -> None:
        signal.raise_signal(signal.SIGINT)
        figure.add_subplot().set_title("title")
        drawn.append(narrow)

    with pytest.raises(KeyboardInterrupt):
        responsive_figure("x", "A figure", draw, wide_height=1, narrow_height=1)
    assert drawn == [False]
    path = tmp_path / "plot.png"
    with pytest.raises(KeyboardInterrupt), picture(path, 1, 1) as figure:
        draw(figure, narrow=False)
    assert path.exists()
