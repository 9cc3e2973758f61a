"""How pictures look: sizes, weights and what is left out, which no number says."""

from __future__ import annotations

import re
from pathlib import Path

import matplotlib as mpl
import matplotlib.image
import pytest
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure

from labelveil.common.report.figures import (
    MUTED,
    RULE,
    beside,
    clean,
    epsilon_axis,
    level,
    logarithmic,
    picture,
    responsive_figure,
    style,
)
from labelveil.common.report.markdown import markdown

PLAIN = {
    "font.size": 10,
    "axes.titlesize": 10,
    "axes.labelsize": 10,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.linewidth": 0.6,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "lines.linewidth": 1.6,
    "lines.markersize": 5,
    "savefig.dpi": 150,
    "svg.fonttype": "none",
    "text.parse_math": False,
}


def test_all_pictures_have_one_style_and_leave_none_behind() -> None:
    before = {name: mpl.rcParams[name] for name in PLAIN}
    with style():
        assert {name: mpl.rcParams[name] for name in PLAIN} == PLAIN
        axes = Figure().subplots()
        assert not axes.spines["top"].get_visible()
        assert axes.spines["left"].get_edgecolor() == to_rgba(RULE)
    assert {name: mpl.rcParams[name] for name in PLAIN} == before


def test_a_page_has_a_wide_and_a_narrow_picture() -> None:
    seen: list[tuple[bool, float, float]] = []

    def draw(figure: Figure, narrow: bool) -> None:
        seen.append((narrow, *figure.get_size_inches().tolist()))
        figure.subplots().plot([0, 1], [0, 1])

    drawn = str(responsive_figure("n", 'a "b" <c>', draw, wide_height=2, narrow_height=3))
    assert seen == [(False, 6.6, 2.0), (True, 3.7, 3.0)]
    tags = re.findall(r"<svg [^>]*>", drawn)
    # 72 points an inch
    boxes = [re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', tag) for tag in tags]
    sizes = [tuple(map(float, box.groups())) for box in boxes if box is not None]
    assert sizes == [pytest.approx((6.6 * 72, 144)), pytest.approx((3.7 * 72, 216))]
    for tag, kind in zip(tags, ("wide", "narrow"), strict=True):
        assert f'class="figure {kind}" role="img" aria-label="a &#34;b&#34; &lt;c&gt;"' in tag
    ids = re.findall(r'\bid="([^"]*)"', drawn)
    assert ids
    assert all(each.startswith(("n-wide-", "n-narrow-")) for each in ids)
    assert len(ids) == len(set(ids))
    used = set(re.findall(r'(?:url\(#|href="#)([^")]+)', drawn))
    assert used <= set(ids)
    assert "xmlns" not in drawn
    assert "<metadata" not in drawn
    assert "<style" not in drawn
    again = str(responsive_figure("n", 'a "b" <c>', draw, wide_height=2, narrow_height=3))
    assert again == drawn


def test_a_file_has_150_dots_an_inch(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    with picture(path, 3, 2) as figure:
        assert figure.get_size_inches().tolist() == [3, 2]
        figure.subplots()
    assert matplotlib.image.imread(path).shape[:2] == (300, 450)


@pytest.mark.parametrize("grid", ["x", "y", ""])
def test_lines_of_a_grid_run_in_one_direction(grid: str) -> None:
    axes = Figure().subplots()
    clean(axes, grid=grid)
    for way, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
        ticks = axis.get_major_ticks()
        assert {tick.gridline.get_visible() for tick in ticks} == {way == grid}
        assert {tick.tick1line.get_markersize() for tick in ticks} == {0}
    usual = Figure().subplots()
    clean(usual)
    assert usual.yaxis.get_major_ticks()[0].gridline.get_visible()


@pytest.mark.parametrize(
    ("values", "between"),
    [([1, 150], True), ([1, 199], True), ([1, 200], False), ([1, 1e4], False)],
)
def test_a_logarithmic_axis_has_few_plain_numbers(values: list[float], between: bool) -> None:
    axes = Figure().subplots()
    axes.plot([1, 2], values)
    logarithmic(axes, "y", "error")
    assert axes.get_yscale() == "log"
    assert axes.get_xscale() == "linear"
    assert axes.get_ylabel() == "error (logarithmic)"
    assert (20 in axes.yaxis.get_major_locator().tick_values(*values)) == between
    assert axes.yaxis.get_major_formatter()(12345.0, 0) == "12,345"
    assert not axes.yaxis.get_minorticklocs().size
    epsilon_axis(axes, [2, 1, 2])
    assert axes.get_xscale() == "log"
    assert axes.get_xlabel() == "ε (logarithmic)"
    assert axes.get_xticks().tolist() == [1, 2]


def test_a_level_is_a_dashed_line_named_beside_its_end() -> None:
    axes = Figure().subplots()
    level(axes, 7, "constant")
    beside(axes, "other", 3, "#123456")
    (line,) = axes.get_lines()
    assert set(line.get_ydata()) == {7}
    assert (line.get_linewidth(), line.get_color()) == (1, MUTED)
    assert line._unscaled_dash_pattern == (0, (4, 3))  # type: ignore[attr-defined]
    names = [(text.get_text(), text.xy, text.xyann, text.get_color()) for text in axes.texts]  # type: ignore[attr-defined]
    assert names == [("constant", (1, 7), (5, 0), MUTED), ("other", (1, 3), (5, 0), "#123456")]
    for text in axes.texts:
        assert (text.get_fontsize(), text.get_va()) == (9, "center")
        assert (text.xycoords, text.anncoords) == (("axes fraction", "data"), "offset points")  # type: ignore[attr-defined]
        assert text.get_annotation_clip() is False  # type: ignore[attr-defined]


def test_markdown_is_escaped() -> None:
    for text, shown in (
        ("a|b*c", r"a\|b\*c"),
        ("a_b", "a_b"),
        ("_b_", r"\_b\_"),
        ("- x", r"\- x"),
        ("1. x", r"1\. x"),
        ("12) x", r"12\) x"),
        ("12x", "12x"),
        ("<a> & b", "&lt;a&gt; &amp; b"),
        ("=", r"\="),
        ("a - b", "a - b"),
    ):
        assert markdown(text) == shown
