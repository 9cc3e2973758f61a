"""Where a command will write: checked before anything is computed for it, let alone charged."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from common.errors import ConfigError
from common.extras import need


def check_output(option: str, path: Path, endings: Collection[str] = ()) -> None:
    """Refuse a file that could not be written.

    Parameters
    ----------
    endings
        What its name may end in, such as ``.csv``; nothing: in anything.

    Raises
    ------
    ConfigError
        If its ending is none of these, or its folder is missing or not writable.
    """
    if endings and path.suffix.lower() not in endings:
        raise ConfigError(f"{option} {path} must end in one of {', '.join(sorted(endings))}")
    folder = path.absolute().parent
    if not folder.is_dir():
        raise ConfigError(f"{option} {path}: there is no folder {folder}; make it first")
    if path.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
        raise ConfigError(f"{option} {path} cannot be written; name another file")


def check_plot(path: Path) -> None:
    """Refuse a picture that could not be drawn.

    Raises
    ------
    ConfigError
        If matplotlib is not installed, or as :func:`check_output`.
    """
    need("report", "--plot")
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    check_output("--plot", path, [f".{name}" for name in FigureCanvasAgg.get_supported_filetypes()])
