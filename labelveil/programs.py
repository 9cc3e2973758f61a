"""Where the three programs start: nothing is imported before it is known to be ours."""

from __future__ import annotations

import os

from labelveil.own_packages import check_own_packages


def labelveil() -> None:
    """Run the neutral program."""
    _check()
    from common.program.cli import main

    main()


def label_party() -> None:
    """Run the labels party."""
    _check()
    from label_party.commands.cli import main

    main()


def feature_party() -> None:
    """Run the features party."""
    _check()
    from feature_party.commands.cli import main

    main()


def _check() -> None:
    try:
        check_own_packages()
    except ImportError as error:
        raise SystemExit(f"error: {error}") from None
    # What this process starts, workers included, must not look into the working directory first.
    os.environ["PYTHONSAFEPATH"] = "1"
