"""Selection: recall on check-ins, forty days of states, one cliff, and many uses of one budget.

Published: Zhu and Wang, AISTATS 2022, Table 1, Figure 1, and the appendix on composition. Their
check-ins are those of Carvalho and others (UAI 2020), and so are ε, δ and k.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np

from common.arrays import Integers
from common.entropy import seeded_entropy
from common.guarantees import BoundedRange, Guarantee, epsilon_at, largest_rho, total
from common.mechanisms.selection import (
    FixedStableTopK,
    Law,
    LimitedDomain,
    NoisyMax,
    Peeling,
    Ranking,
    Selector,
    StableTopK,
    TopStable,
    pull_towards,
)
from common.report.figures import logarithmic, picture
from tests.benchmarks.harness import markdown
from tests.benchmarks.published import sources

DELTA = Fraction(1, 10**6)
KS = (3, 10, 50)
EPSILONS = (0.4, 0.8, 1.0)
UNLISTED = ("StableTopK", "StableTopK, unfilled", "Top-Stable", "Limited Domain")
"""Told how many leaders they may look at, not which candidates there are."""
LISTED = ("StableTopK, listed", "EM-CDP")
"""Told a public list of all candidates."""
NAMES = (*UNLISTED, *LISTED)

PRINTED = {
    ("BrightKite", 0.4): {
        "StableTopK": (1.00, 0.91, 0.61),
        "Top-Stable": (1.00, 0.77, 0.14),
        "Limited Domain": (1.00, 0.47, 0.10),
    },
    ("BrightKite", 0.8): {
        "StableTopK": (1.00, 1.00, 0.67),
        "Top-Stable": (1.00, 0.80, 0.16),
        "Limited Domain": (1.00, 0.79, 0.25),
    },
    ("BrightKite", 1.0): {
        "StableTopK": (1.00, 1.00, 0.67),
        "Top-Stable": (1.00, 0.80, 0.18),
        "Limited Domain": (1.00, 0.88, 0.28),
    },
    ("Foursquare", 0.4): {"StableTopK": (1.00, 0.72, 0.48)},
    ("Foursquare", 0.8): {"StableTopK": (1.00, 1.00, 0.67)},
    ("Foursquare", 1.0): {"StableTopK": (1.00, 1.00, 0.67)},
}
"""Recall at k = 3, 10, 50 in Table 1 of Zhu and Wang."""


def largest(good: Callable[[Fraction], bool], high: Fraction) -> Fraction:
    """The largest multiple of 1/4096 below ``high`` that is good; goodness ends once."""
    low, top = 0, int(high * 4096)
    while top - low > 1:
        middle = (low + top) // 2
        low, top = (middle, top) if good(Fraction(middle, 4096)) else (low, middle)
    return Fraction(low, 4096)


def selectors(
    k: int, epsilon: float, delta: Fraction = DELTA, uses: int = 1
) -> dict[str, Selector]:
    """Every mechanism at the same (ε, δ) for that many uses together; half of δ is for failures.

    Without a list, what is not stable is filled up from a limited domain of the same k̄ = 2k as that
    of Limited Domain itself; Top-Stable looks at k + 1 leaders only, whatever it may.
    """
    half, domain = delta / 2, max(2 * k, k + 10)
    rho = largest_rho(epsilon, delta, half)

    def fits(guarantee: Guarantee) -> bool:
        return total([guarantee] * uses, delta).epsilon <= epsilon

    def limited(rate: Fraction) -> LimitedDomain:
        return LimitedDomain(k, domain, rate, half / uses)

    def stable(share: Fraction) -> TopStable:
        return TopStable(k, share, half / uses if uses > 1 else delta)

    def filled(part: Fraction) -> FixedStableTopK:
        return FixedStableTopK(k, part, half / uses / 2, domain=domain)

    high = Fraction(epsilon)
    return {
        "StableTopK": filled(largest(lambda part: fits(filled(part).guarantee), rho / uses)),
        "StableTopK, unfilled": StableTopK(
            rho / uses, half / uses, k, pull_towards(k, Fraction(1, 4))
        ),
        "Top-Stable": stable(
            high if uses == 1 else largest(lambda e: fits(stable(e).guarantee), high)
        ),
        "Limited Domain": limited(largest(lambda e: fits(limited(e).guarantee), high)),
        "StableTopK, listed": FixedStableTopK(k, rho / uses, half / uses),
        "EM-CDP": Peeling(k, largest(lambda e: fits(BoundedRange.of(e).repeat(k)), high)),
    }


@dataclass(frozen=True)
class Cell:
    """Recall of the true top-k by one mechanism: mean and standard error over trials."""

    k: int
    epsilon: float
    name: str
    recall: float
    error: float


def recall(selector: Selector, ranking: Ranking, k: int, trials: int) -> tuple[float, float]:
    """Mean share of the true top-k that comes out, and its standard error."""
    # every candidate that ties with the k-th is as true as it
    bar = int(ranking.sorted[k - 1])
    shares = []
    for trial in range(trials):
        chosen = selector.draw(ranking, seeded_entropy(trial)).chosen
        hits = 0 if chosen is None else int(np.sum(ranking.counts[chosen] >= bar))
        shares.append(min(hits, k) / k)
    return float(np.mean(shares)), float(np.std(shares) / np.sqrt(trials))


def check_ins(counts: Integers, users: int, k: int, epsilon: float, trials: int) -> list[Cell]:
    """Table 1's protocol: distinct users of each place, δ = 1/users, half of it for the test."""
    ranking = Ranking(counts)
    return [
        Cell(k, epsilon, name, *recall(selector, ranking, k, trials))
        for name, selector in selectors(k, epsilon, Fraction(1, users)).items()
    ]


def check_ins_table(name: str, cells: Iterable[Cell]) -> str:
    """The recalls as Markdown, the printed ones in brackets."""
    by = {(cell.epsilon, cell.k, cell.name): cell for cell in cells}
    rows = []
    for epsilon in EPSILONS:
        printed = PRINTED.get((name.split(",")[0], epsilon), {})  # the 10-core is a part
        for k in KS:
            row = []
            for method in NAMES:
                cell = by[epsilon, k, method]
                theirs = printed.get(method)
                shown = f" ({theirs[KS.index(k)]:.2f})" if theirs else ""
                row.append(f"{cell.recall:.2f} ± {cell.error:.2f}{shown}")
            rows.append([f"{epsilon:g}", str(k), *row])
    return markdown(["ε", "k", *NAMES], rows)


def at_least_three(rank: int) -> Fraction:
    """r(j): rank 1 is always New York; look below it."""
    return Fraction(0) if rank >= 3 else Fraction(-(10**9))


def covid_plot(path: Path, epsilon: float = 4.0) -> dict[str, float]:
    """Daily adaptive top-k of the states by cumulative cases, composed to one budget."""
    days, states, cases = sources.covid()
    rho = largest_rho(epsilon, DELTA, DELTA / 2)
    daily = StableTopK(rho / len(days), DELTA / 2 / len(days), most=10, regularizer=at_least_three)
    shown = np.zeros(cases.shape, dtype=bool)
    right, sizes = 0, []
    for i in range(len(days)):
        selection = daily.draw(cases[i], seeded_entropy(i))
        sizes.append(selection.k)
        if selection.chosen is not None:
            shown[i, selection.chosen] = True
            right += bool(np.array_equal(selection.chosen, Ranking(cases[i]).top(selection.k)))
    total = daily.guarantee.repeat(len(days))
    assert epsilon_at(total, DELTA) <= epsilon
    often = np.argsort(-shown.sum(axis=0), kind="stable")[:12]
    with picture(path, 9, 6) as figure:
        axes = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
        axes[0].imshow(shown[:, often].T, aspect="auto", cmap="Blues", interpolation="nearest")
        axes[0].set_yticks(range(len(often)), [states[j] for j in often])
        axes[0].set_title(f"States released each day, ε = {epsilon:g} for all {len(days)} days")
        axes[1].bar(range(len(days)), sizes, color="tab:blue")
        axes[1].set_ylabel("chosen k (0: ⊥)")
        axes[1].set_xticks(range(0, len(days), 10), [days[j] for j in range(0, len(days), 10)])
    answered = sum(size > 0 for size in sizes)
    return {
        "days": len(days),
        "answered": answered,
        "exact": right,
        "mean_k": float(np.mean(sizes)),
    }


def cliff_plot(path: Path, trials: int, gap: int = 60, epsilon: float = 1.0) -> str:
    """Figure 1(b): recall against k, with one cliff of fixed height at rank k; as Markdown, too."""
    ks = (5, 10, 20, 40, 80, 160)
    cells = []
    for k in ks:
        ranking = Ranking(sources.synthetic(k, gap))
        for name, selector in selectors(k, epsilon).items():
            mean, error = recall(selector, ranking, k, trials)
            cells.append(Cell(k, epsilon, name, mean, error))
    rows = []
    with picture(path, 7, 4.5) as figure:
        axis = figure.subplots()
        for name in NAMES:
            row = [cell for cell in cells if cell.name == name]
            axis.errorbar(
                ks, [c.recall for c in row], [c.error for c in row], label=name, marker="o", ms=3
            )
            rows.append([name, *(f"{c.recall:.2f}" for c in row)])
        logarithmic(axis, "x", f"k; the gap behind it is {gap} users")
        axis.set_xticks(ks)
        axis.set_ylabel(f"recall of the top k, ε = {epsilon:g}, δ = 1e-6")
        axis.legend()
    return markdown(["method", *(f"k = {k}" for k in ks)], rows)


GROUPS, DAYS = 4, 10


def forty_days(
    path: Path, k: int = 5, epsilon: float = 1.0, trials: int = 5, new: bool = False
) -> str:
    """Figure 1(a): the k states with most cases, daily; each group of ten days has one budget.

    Cases so far, or the day's ``new`` ones.
    """
    days, _, cases = sources.covid(new)
    methods = selectors(k, epsilon, uses=DAYS)
    recalls: dict[str, list[float]] = {name: [] for name in methods}
    for day in range(GROUPS * DAYS):
        ranking = Ranking(cases[day])
        for name, selector in methods.items():
            bar = ranking.sorted[k - 1]
            choices = [
                selector.draw(ranking, seeded_entropy(day * trials + i)).chosen
                for i in range(trials)
            ]
            hits = [0 if c is None else int(np.sum(ranking.counts[c] >= bar)) for c in choices]
            recalls[name].append(float(np.mean(hits)) / k)
    groups, rows = [slice(DAYS * g, DAYS * (g + 1)) for g in range(GROUPS)], []
    with picture(path, 8, 4) as figure:
        axis = figure.subplots()
        for i, (name, row) in enumerate(recalls.items()):
            means = [float(np.mean(row[g])) for g in groups]
            axis.bar(np.arange(GROUPS) + 0.16 * (i - 2), means, 0.16, label=name)
            rows.append([name, *(f"{mean:.2f}" for mean in means)])
        axis.set_xticks(range(GROUPS), [f"days {g.start + 1} to {g.stop}" for g in groups])
        axis.set_ylabel(f"recall of the top {k} states,\nε = {epsilon:g} for ten days")
        axis.legend(loc="upper left", bbox_to_anchor=(1, 1))
    labels = [f"{days[g.start]} to {days[g.stop - 1]}" for g in groups]
    return markdown(["method", *labels], rows)


USES = (1, 10, 100, 1000)


def composed(k: int = 10, epsilon: float = 0.5, delta: Fraction = Fraction(1, 10**9)) -> str:
    """ε of many uses together, at δ = 1e-5, of mechanisms that are (ε, δ)-DP alone; as Markdown."""
    wide, rows = Fraction(1, 10**5), []
    for name, selector in selectors(k, epsilon, delta).items():
        guarantee: Guarantee = selector.guarantee  # type: ignore[attr-defined]
        totals = [total([guarantee] * uses, wide).epsilon for uses in USES]
        rows.append([name, *(f"{each:.2f}" for each in totals)])
    return markdown(["method", *(f"{uses} uses" for uses in USES)], rows)


def noisy_max_table(candidates: int = 20, epsilon: float = 1.0, trials: int = 400) -> str:
    """Report noisy max by the law of its noise: the lead that the best needs to win 95% of draws.

    All others are level, which is the worst case; utilities move by 1 in either direction, and all
    draws together are (ε, 10⁻⁶)-DP.
    """
    rows = []
    for law in Law:
        row = [law.value]
        for uses in USES:
            made = _of_uses(law, candidates, epsilon, uses)
            row.append(f"{needed_lead(made, candidates, trials):,}" if made else "–")
        rows.append(row)
    return markdown(["noise", *(f"{uses:,} draws" for uses in USES)], rows)


def _of_uses(law: Law, candidates: int, epsilon: float, uses: int) -> NoisyMax | None:
    """The least noise with which so many draws are (ε, 10⁻⁶)-DP together; None if there is none."""

    def made(share: Fraction) -> NoisyMax:
        if law == Law.GAUSSIAN:
            return NoisyMax(law, variance=Fraction(round(1 / share**2)))
        return NoisyMax(law, share)

    def fits(share: Fraction) -> bool:
        return total([made(share).guarantee(candidates)] * uses, DELTA).epsilon <= epsilon

    share = largest(fits, Fraction(epsilon) + Fraction(1, 4096))
    return made(share) if share else None


def needed_lead(noisy: NoisyMax, candidates: int, trials: int) -> int:
    """The least lead with which the first candidate is chosen in 95% of the trials."""

    def wins(lead: int) -> bool:
        utilities = np.array([lead] + [0] * (candidates - 1))
        entropy = seeded_entropy(lead)
        source = entropy.source("noisy max")
        chosen = [noisy.draw(utilities, source) == 0 for _ in range(trials)]
        return float(np.mean(chosen)) >= 0.95

    high = 1
    while not wins(high):
        high *= 2
    low = high // 2
    while high - low > max(1, high // 64):
        middle = (low + high) // 2
        low, high = (low, middle) if wins(middle) else (middle, high)
    return high
