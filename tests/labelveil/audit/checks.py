"""What tests of checks compare them with, and read off what they say."""

from __future__ import annotations

import re

from labelveil.audit.verdict import Verdict

PASS, FAIL, UNKNOWN = Verdict.PASS, Verdict.FAIL, Verdict.NOT_CHECKABLE


def numbers(text: str) -> list[float]:
    """All numbers in a text."""
    return [float(each.replace(",", "")) for each in re.findall(r"\d[\d,]*\.?\d*(?:e-\d+)?", text)]
