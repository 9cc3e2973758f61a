"""Seeds: can the noise be had by trying them all?

If every start draws one of N seeds, n starts show two alike with probability above
1 - exp(-n(n-1) / 2N). Starts that draw 256 bits never do.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from labelveil.audit.power import birthday_starts, largest_seed_space, least
from labelveil.audit.verdict import Check, Power, verdict_of

SEED_SPACE = 1 << 22  # a seed space so large is still found with 95%

STARTS = birthday_starts(SEED_SPACE)


def seeds_check(digests: Sequence[bytes], rows: int, kinds: str) -> Check:
    """No two starts drew the same noise.

    Each start gives one digest, of the outputs of ``rows`` labels: enough not to agree by chance
    (:func:`window_rows`). ``kinds`` says in words what sorts of starts they were.
    """
    most = Counter(digests).most_common(1)[0][1]
    repeated = len(digests) - len(set(digests))
    starts = len(digests)

    def enough(seeds: float) -> bool:
        """Whether so many seeds N show no more repeats of n starts: n - N (1 - (1 - 1/N)ⁿ)."""
        return starts + seeds * math.expm1(starts * math.log1p(-1 / seeds)) <= repeated

    seeds = least(enough, 1.0, starts**2.0) if repeated else math.inf
    # whole bits of the largest seed space that is found with 95%
    bits = math.floor(math.log2(max(largest_seed_space(starts), 1)))
    return Check(
        verdict=verdict_of(repeated == 0),
        tried=f"{starts:,} starts ({kinds}) randomized the same {rows:,} labels, and their"
        " outputs were compared with each other.",
        found="No two drew the same noise."
        if not repeated
        else f"{repeated:,} of them repeat another's noise, one up to {most:,} times: as if it had"
        f" been drawn from about {seeds:,.0f} seeds.",
        bound=math.inf if repeated else 0.0,
        details={"starts": starts, "repeated": repeated},
        power=(Power("bits of a seed that is found", float(bits)),),
    )
