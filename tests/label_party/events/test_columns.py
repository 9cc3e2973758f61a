"""Categories of events, from rows that may be several of an event."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labelveil.label_party.events.columns import NONE, one_per_event

rows = st.lists(st.tuples(st.integers(0, 5), st.sampled_from([NONE, 0, 1, 2])), max_size=12)


@pytest.mark.parametrize("last", [False, True])
@given(rows=rows)
def test_an_events_category_is_its_last_or_the_one_that_its_rows_agree_on(
    last: bool, rows: list[tuple[int, int]]
) -> None:
    at, codes = (np.array([row[n] for row in rows], dtype=np.int64) for n in (0, 1))
    found = one_per_event(at, codes, 6, last=last)
    for event in range(6):
        given = [code for place, code in rows if place == event and code != NONE]
        agreed = given[-1:] if last else [*{*given}]
        assert found[event] == (agreed[0] if len(agreed) == 1 else NONE)
