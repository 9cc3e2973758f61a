"""What a reader's browser makes of the page, wide and narrow, light and dark."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest

from labelveil.feature_party.report import ReportInputs, write_report

MakeInputs = Callable[..., ReportInputs]

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
PHONE = 390
SLOW = pytest.mark.slow

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium on PATH")

# A window cannot be as narrow as a phone, a frame can; the frame tells its own width.
_FRAME = """<!doctype html><body style="margin:0"><iframe id="f" src="report.html"
 style="border:0;width:{width}px;height:{height}px"></iframe><script>
 addEventListener("load", () => {{
   const inner = document.getElementById("f").contentDocument.documentElement;
   document.title = "measured " + inner.scrollWidth + " " + inner.scrollHeight;
 }});</script></body>"""


def _chromium(folder: Path, page: Path, *arguments: str) -> str:
    assert BROWSER is not None
    command = [
        BROWSER,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--allow-file-access-from-files",
        "--hide-scrollbars",
        "--virtual-time-budget=5000",
        f"--user-data-dir={folder / 'profile'}",
        *arguments,
        page.as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout


def _screenshot(folder: Path, page: Path, width: int, height: int, *arguments: str) -> np.ndarray:
    picture = folder / "screenshot.png"
    _chromium(
        folder, page, f"--window-size={width},{height}", f"--screenshot={picture}", *arguments
    )
    return matplotlib.image.imread(picture)[:, :, :3]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory, make_inputs: MakeInputs) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_report(path, make_inputs())
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("width", "simulated"),
    [
        (PHONE, True),
        *(
            pytest.param(*case, marks=SLOW)
            for case in [(PHONE, False), (1200, True), (1200, False)]
        ),
    ],
)
def test_nothing_sticks_out(
    tmp_path: Path, make_inputs: MakeInputs, width: int, simulated: bool
) -> None:
    label = "an_unreasonably_long_column_name_without_a_single_space_to_break_at_anywhere"
    write_report(tmp_path / "report.html", make_inputs(label=label, simulated=simulated))
    frame = tmp_path / "frame.html"
    frame.write_text(_FRAME.format(width=width, height=900))
    measured = re.search(r"measured (\d+) (\d+)", _chromium(tmp_path, frame, "--dump-dom"))
    assert measured, "the page did not load"
    assert int(measured[1]) == width
    assert int(measured[2]) > 2000


@pytest.fixture(scope="module")
def light(tmp_path_factory: pytest.TempPathFactory, page: Path) -> np.ndarray:
    return _screenshot(tmp_path_factory.mktemp("light"), page, 1200, 4500)


@pytest.mark.slow
def test_pictures_are_drawn(light: np.ndarray) -> None:
    drawn(light)


@SLOW
def test_pictures_are_drawn_on_a_narrow_page(tmp_path: Path, page: Path) -> None:
    drawn(_screenshot(tmp_path, page, 520, 5500))


def drawn(pixels: np.ndarray) -> None:
    paper, height = pixels[2, 2], len(pixels)
    inked = np.abs(pixels - paper).max(axis=2) > 0.2
    assert 0.02 < inked.mean() < 0.6
    assert inked.any(axis=1)[: height // 2].mean() > 0.3
    # The heat maps are the only strongly yellow parts.
    red, green, blue = np.moveaxis(pixels, 2, 0)
    assert ((red > 0.8) & (green > 0.7) & (blue < 0.45)).sum() > 200


@pytest.mark.slow
def test_a_dark_reader_gets_a_dark_page(tmp_path: Path, page: Path, light: np.ndarray) -> None:
    dark = _screenshot(tmp_path, page, 1000, 900, "--blink-settings=preferredColorScheme=0")
    assert light[2, 2].mean() > 0.9
    assert dark[2, 2].mean() < 0.2
    for pixels in (light[:900], dark):
        contrast = np.abs(pixels.mean(axis=2) - pixels[2, 2].mean()).max()
        assert contrast > 0.6
