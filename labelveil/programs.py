"""Where the three programs start."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from importlib import import_module


def labelveil() -> None:
    _start("labelveil.commands.cli")


def label_party() -> None:
    _start("labelveil.label_party.commands.cli")


def feature_party() -> None:
    _start("labelveil.feature_party.commands.cli")


def _start(module: str) -> None:
    # What this process starts, workers included, must not look into the working directory first.
    os.environ["PYTHONSAFEPATH"] = "1"
    # OpenMP's threads spin while they wait, unless told before a library reads it: ten times the
    # processor time of what they do, where anything else runs on the machine.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # Polars reads named types of Arrow (JSON, say) as what they are stored as, and warns of it.
    os.environ.setdefault("POLARS_UNKNOWN_EXTENSION_TYPE_BEHAVIOR", "load_as_storage")
    if sys.argv[1:2] != ["serve"]:  # which runs for weeks
        # Libraries leave hundreds of thousands of objects that stay: looking through them for
        # garbage, while they are imported and once more at the end, is a sixth of a short command.
        gc.set_threshold(50_000)
        atexit.register(gc.freeze)
    try:
        from labelveil.common.security.tls import only_tls13

        only_tls13()
        import_module(module).main()
    except KeyboardInterrupt:  # later ones are answered by the program
        print("interrupted; nothing was done yet", file=sys.stderr)
        raise SystemExit(130) from None
