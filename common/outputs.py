"""Where a command will write: checked before anything is computed for it, let alone charged."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from tempfile import TemporaryFile

from labelveil.common.errors import ConfigError
from labelveil.common.extras import need
from labelveil.common.files import file_errors


def check_output(
    option: str, path: Path, endings: Collection[str] = (), *, makes_folder: bool = False
) -> None:
    """Refuse a file that could not be written, in a folder that exists or that the command makes.

    ``endings`` are what its name may end in, such as ``.csv``; none: anything. ``ConfigError`` if
    it ends otherwise, is a folder, or as :func:`check_folder`.
    """
    if endings and path.suffix.lower() not in endings:
        raise ConfigError(f"{option} {path} must end in one of {', '.join(sorted(endings))}")
    if path.is_dir():
        raise ConfigError(f"{option} {path} is a folder; name a file")
    folder = path.absolute().parent
    if not (folder.is_dir() or makes_folder):
        raise ConfigError(f"{option} {path}: there is no folder {folder}; make it first")
    if not path.exists():
        check_folder(option, folder, path)
    elif not os.access(path, os.W_OK):
        raise ConfigError(f"{option} {path} cannot be written; name another file")


def check_folder(option: str, folder: Path, named: Path | None = None) -> None:
    """Refuse a folder in which no file can be made; of one that is not there yet, its parent.

    ``ConfigError`` with the reason: its rights, its disk, a file in its place. It is about what the
    option ``named``, the folder itself unless that is a file in it.
    """
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    failed = f"{option} {named or folder} cannot be written, nothing can in {existing}"
    with (
        file_errors(ConfigError, failed, "; name another"),
        TemporaryFile(dir=existing, buffering=0) as file,  # it never has a name
    ):
        file.write(b"\0")


def check_plot(path: Path) -> None:
    """Refuse a picture that could not be drawn, if only for want of matplotlib: ``ConfigError``."""
    need("report", "--plot")
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    check_output("--plot", path, [f".{name}" for name in FigureCanvasAgg.get_supported_filetypes()])
