"""The array types that signatures name, written once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Indices = Integers
"""Positions in another array."""
Booleans = NDArray[np.bool_]
Words = NDArray[np.uint64]
