"""Objects that draw noise or charge a budget: one process's own, never copied, one call at a time.

Two copies of such an object draw the same words, and the difference of two answers is then that of
the exact ones; or both spend the one budget. A fork is a copy as well. So none of them can be
copied or pickled, each refuses to work in a process that it was not made in, and one lock lets one
call in at a time. A call from within a call, from a callback or a signal's handler, would see an
object that is half changed, and is refused, too.

What has to draw in several processes asks for entropy in each of them, or gives tasks a key and
rows of their own (:class:`labelveil.common.engine.task.Secrets`).
"""

from __future__ import annotations

import os
import threading
from typing import Any, SupportsIndex

from labelveil.common.errors import PrivacyError

_forks = 0
"""Forks that lead to this process: a process's number may come again, but not along with this."""


def _forked() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_forked)


class ProcessLock:
    """A lock of one process, as a context manager: one holder at a time, and none within one.

    ``PrivacyError`` in another process than the one that made it, unless it holds ``anywhere``, and
    from within.
    """

    __slots__ = ("_held", "_lock", "_owner", "_process")

    def __init__(self, owner: str, *, anywhere: bool = False) -> None:
        self._owner = owner
        self._process = None if anywhere else (os.getpid(), _forks)
        self._lock = threading.RLock()
        self._held = False

    def check_process(self) -> None:
        """Raise ``PrivacyError`` in a process that was forked since."""
        # before the lock, which another thread may have held at the fork and never gives back
        if self._process not in (None, (os.getpid(), _forks)):
            raise PrivacyError(
                f"this {self._owner} was made before a fork, and would do here what it does there;"
                " make another one in each process, with a system_entropy() of its own"
            )

    def __enter__(self) -> None:
        self.check_process()
        self._lock.acquire()
        if self._held:
            self._lock.release()
            raise PrivacyError(
                f"this {self._owner} is at work; call it again once it has answered, not from"
                " within"
            )
        self._held = True

    def __exit__(self, *_: object) -> None:
        self._held = False
        self._lock.release()


class NonCopyable:
    """Base of what draws or charges: its methods do so inside ``with self._lock``."""

    __slots__ = ("_lock",)

    def __init__(self, *, anywhere: bool = False) -> None:
        """``anywhere`` is for what repeats its words anyway, in tests."""
        self._lock = ProcessLock(type(self).__name__, anywhere=anywhere)

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        """Refuse ``copy``, ``deepcopy`` and ``pickle``, which all ask here."""
        raise PrivacyError(
            f"{type(self).__name__} is not copied or pickled: two of them would share their noise"
            " or their budget; make another one, with a system_entropy() of its own"
        )
