"""Work that goes on side by side: as much as cores are free, and none that nobody waits for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future

import pytest
import torch

from labelveil.feature_party import threads
from labelveil.feature_party.threads import at_once, side_by_side, threads_for


def test_few_rows_leave_the_other_cores_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for cores, few, many in ((1, 1, 1), (2, 2, 1), (7, 7, 3)):
            monkeypatch.setattr(threads, "THREADS", cores)
            with threads_for(25_000):
                assert at_once() == few
            with threads_for(25_001):
                assert at_once() == many
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_what_nobody_wants_any_more_ends(error: type[BaseException]) -> None:
    begun, going = threading.Event(), list[Future[None]]()

    def endless(go_on: Callable[[], None]) -> None:
        while True:
            begun.set()
            go_on()

    def interrupted() -> None:
        with side_by_side() as (pool, go_on):
            going.append(pool.submit(endless, go_on))
            begun.wait(60)
            raise error

    with pytest.raises(error):
        interrupted()
    with pytest.raises(CancelledError):
        going[0].result(60)
    with side_by_side() as (pool, go_on):  # and nothing else does
        assert pool.submit(lambda: go_on() or 5).result(60) == 5
