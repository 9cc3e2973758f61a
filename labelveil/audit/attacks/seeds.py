"""Seeds: can the noise be had by trying them all?

If every start draws one of N seeds, n starts show two alike with probability above
1 - exp(-n(n-1) / 2N). Starts that draw 256 bits never do.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from labelveil.audit.power import birthday_starts, largest_seed_space
from labelveil.audit.verdict import Check, Power, verdict_of

SEED_SPACE = 1 << 22
"""A seed space so large is still found with 95%."""

STARTS = birthday_starts(SEED_SPACE)


def seeds_check(digests: Sequence[bytes], rows: int, kinds: str) -> Check:
    """No two starts drew the same noise.

    Each start gives one digest, of the outputs of ``rows`` labels: enough not to agree by chance
    (:func:`window_rows`). ``kinds`` says in words what sorts of starts they were.
    """
    most = Counter(digests).most_common(1)[0][1]
    repeated = len(digests) - len(set(digests))
    # whole bits of the largest seed space that is found with 95%
    bits = math.floor(math.log2(max(largest_seed_space(len(digests)), 1)))
    return Check(
        name="cold starts",
        verdict=verdict_of(repeated == 0),
        claim="Noise comes from the operating system's entropy, again at every start: no seed.",
        tried=f"{len(digests):,} starts ({kinds}) randomized the same {rows:,} labels, and their"
        " outputs were compared with each other.",
        found="No two drew the same noise."
        if not repeated
        else f"{repeated:,} of them repeat another's noise, one up to {most:,} times: as if it had"
        f" been drawn from about {_seeds_behind(len(digests), repeated):,.0f} seeds.",
        bound=math.inf if repeated else 0.0,
        details={"starts": len(digests), "repeated": repeated},
        power=(Power("bits of a seed that is found", float(bits)),),
    )


def _seeds_behind(starts: int, repeated: int) -> float:
    """About how many seeds show so many repeats: the N with n - N (1 - (1 - 1/N)ⁿ) = repeated."""
    low, high = 1.0, float(starts) ** 2
    for _ in range(80):
        middle = math.sqrt(low * high)
        distinct = -middle * math.expm1(starts * math.log1p(-1 / middle)) if middle > 1 else 1.0
        low, high = (middle, high) if starts - distinct > repeated else (low, middle)
    return low
