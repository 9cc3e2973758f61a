"""Where the three programs start."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

_ABORTED = (
    *("torch.autograd", "torch.distributed", "torch.distributed.autograd"),
    "torch.multiprocessing",
)
"""Modules that, while they are imported, call Python from compiled code that takes no error of it:
one that is interrupted there ends the process by SIGABRT, or SIGSEGV."""


class _Imports(MetaPathFinder):
    """Finds modules as others do, and imports some of them so that ^C is answered, and at once."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in (*_ABORTED, "polars"):
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module = partial(  # type: ignore[method-assign]
                _held if name in _ABORTED else _interruptible, spec.loader.exec_module
            )
        return spec


def _interruptible(execute: Callable[[ModuleType], None], module: ModuleType) -> None:
    """Polars handles SIGINT, too, and has it restart calls: ^C would end no wait for a thread."""
    execute(module)
    signal.siginterrupt(signal.SIGINT, True)


def _held(execute: Callable[[ModuleType], None], module: ModuleType) -> None:
    from labelveil.common.signals import interrupts_held

    with interrupts_held():
        execute(module)


def _interrupted_again(lost: sys.UnraisableHookArgs) -> None:
    """Send a ^C (or SIGTERM) again that was raised where no error is taken, in a ``__del__`` or a
    weak reference's callback: Python prints such an error, and goes on."""
    if not issubclass(lost.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(lost)
        return
    number = signal.SIGINT if lost.exc_type is KeyboardInterrupt else signal.SIGTERM
    # Not from here, where it would be lost again: this runs in the place that took no error.
    again = threading.Timer(0.01, os.kill, (os.getpid(), number))
    again.daemon = True
    again.start()


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
        sys.meta_path.insert(0, _Imports())
        sys.unraisablehook = _interrupted_again
        import_module(module).main()
    except KeyboardInterrupt:  # later ones are answered by the program
        print("interrupted; nothing was done yet", file=sys.stderr)
        raise SystemExit(130) from None
