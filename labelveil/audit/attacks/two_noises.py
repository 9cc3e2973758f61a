"""Two noises: is anything random used twice, in two places that are meant to be independent?

Prior and rows, one release and the next, one epoch and the next. Four ways of looking:

- *Tapes.* Each part is run under one key while every 64-bit word that it draws is recorded; a word
  that two parts share is a word used twice. Words of different streams agree with probability 2⁻⁶⁴.
- *Correlation.* Without a key: noise on a known histogram beside the outputs of the same releases,
  cell by cell and row by row.
- *Stretches.* Without a key: two releases about the same labels share no stretch of rows.
- *Seeds.* Without a key: if every start draws one of N seeds, n starts show two alike with
  probability above 1 - exp(-n(n-1) / 2N). Starts that draw 256 bits never do.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from labelveil.audit.attacks.rows_apart import Association, cells_of, largest_sum
from labelveil.audit.attacks.views import Outputs
from labelveil.audit.power import birthday_starts, largest_seed_space, least
from labelveil.audit.verdict import GATE, Check, Power, Verdict, verdict_of
from labelveil.common.arrays import Integers, Words
from labelveil.common.entropy import Entropy
from labelveil.common.randomizers.cells import Codebook

SEED_SPACE = 1 << 22  # a seed space so large is still found with 95%

STARTS = birthday_starts(SEED_SPACE)


class TapedEntropy(Entropy):
    """Entropy that keeps every word it has given out."""

    __slots__ = ("tape",)

    def __init__(self, key: bytes) -> None:
        super().__init__(key, secure=False)
        self.tape = np.empty(0, np.uint64)

    def words(self, stream: str, start: int, count: int) -> Words:
        words = super().words(stream, start, count)
        with self._turn:
            self.tape = np.append(self.tape, words)
        return words


def tapes_check(parts: Mapping[str, Callable[[Entropy], Any]], key: bytes) -> Check:
    """No word is drawn twice, by one random part of a release or by two; all run under one key."""
    tapes: dict[str, Words] = {}
    for name, part in parts.items():
        entropy = TapedEntropy(key)
        part(entropy)
        tapes[name] = entropy.tape
    shared = {
        f"{part} and {other}": int(np.intersect1d(tapes[part], tapes[other]).size)
        for part, other in combinations(tapes, 2)
    }
    shared |= {f"{name} with themselves": t.size - np.unique(t).size for name, t in tapes.items()}
    used = {pair: count for pair, count in shared.items() if count}
    return Check(
        verdict=verdict_of(not used),
        tried="Each random part was run under one key while its words were recorded:"
        f" {', '.join(f'{name} ({tape.size:,} words)' for name, tape in tapes.items())}.",
        found="; ".join(f"{pair}: {count:,} words" for pair, count in used.items()) + "."
        if used
        else "No word is drawn twice.",
        details={"shared": shared},
    )


def correlation(noise: Integers, outputs: Outputs) -> Association:
    """Compare the noise on every cell with the output of every row, over many releases.

    (releases, k) noisy counts less the true ones, and (releases, m) outputs of rows whose labels
    are the same in every release.
    """
    cells = cells_of(outputs.reshape(-1)).reshape(outputs.shape)
    features = {
        "the sign of the noise": np.sign(noise).astype(np.float64),
        "whether the noise is odd": 2.0 * (noise % 2) - 1,
        "whether the noise is large": np.where(np.abs(noise) > np.median(np.abs(noise)), 1.0, -1.0),
    }
    scores = (cells >= (cells.max() + 1) // 2).astype(np.float64)
    return largest_sum(
        scores - scores.mean(axis=0),
        features,
        lambda name, row, cell: f"row {row} and {name} on cell {cell}",
    )


def same_noise_check(codes: Outputs, other: Outputs, codebook: Codebook) -> Check:
    """Two messages of (n,) codes about the same labels, in one order, share no stretch of rows.

    The codes agree in a row with probability at most q, the channels' largest, so that n rows
    hold a stretch of w equal ones with probability at most n · q^w.
    """
    share = math.prod(float(channel.row_probabilities.max()) for channel in codebook.channels)
    chance = math.ceil(math.log(codes.size / GATE) / -math.log(share))
    edges = np.flatnonzero(np.diff(np.concatenate([[0], codes == other, [0]])))
    longest = int((edges[1::2] - edges[::2]).max()) if edges.size else 0
    enough = chance <= codes.size
    return Check(
        verdict=verdict_of(longest < chance) if enough else Verdict.NOT_CHECKABLE,
        tried=f"{codes.size:,} rows were compared; {chance:,} equal ones in a row have a"
        f" probability below {GATE:g}.",
        found=f"The longest stretch of equal outputs is {longest:,} rows.",
        confidence=1 - GATE,
        power=(Power("rows of a stretch that is repeated in place", float(chance)),),
    )


def seeds_check(digests: Sequence[bytes], rows: int, kinds: str) -> Check:
    """No two starts drew the same noise.

    Each start gives one digest, of the outputs of ``rows`` labels: enough not to agree by chance
    (:func:`window_rows`). ``kinds`` says in words what sorts of starts they were.
    """
    most = Counter(digests).most_common(1)[0][1]
    repeated = len(digests) - len(set(digests))
    starts = len(digests)

    def enough(seeds: float) -> bool:
        """Whether N seeds show no more repeats of n starts: n - N (1 - (1 - 1/N)ⁿ)."""
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
