"""What is refused is refused in one line that says why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


def check_refused(made: Callable[[], Any], error: type[Exception], said: str) -> None:
    """Fail unless a call raises this error, in one line with these words."""
    with pytest.raises(error, match=said) as caught:
        made()
    assert "\n" not in str(caught.value)
