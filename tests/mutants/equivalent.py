"""Mutations that change nothing that anybody could see, and why.

By file, and the line before and after: both without the spaces around them.
"""

from __future__ import annotations

EQUIVALENT: dict[tuple[str, str], str] = {}
