"""Pictures of several panels, three in a row."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from matplotlib.axes import Axes

from labelveil.common.report.figures import picture


@contextmanager
def panels(path: Path, titles: Collection[str], columns: int = 3) -> Iterator[dict[str, Axes]]:
    """Draw to a file; yields the axes of each title."""
    wide = min(columns, len(titles))
    tall = -(-len(titles) // wide)
    with picture(path, 4.2 * wide, 3.6 * tall) as figure:
        axes = list(figure.subplots(tall, wide, squeeze=False).flat)
        for axis in axes[len(titles) :]:
            axis.set_axis_off()
        titled = dict(zip(titles, axes, strict=False))
        for title, axis in titled.items():
            axis.set_title(title, fontsize=10)
        yield titled
