"""Attacks on the implementation: what leaves although no formula says so.

Each check takes plain callables, arrays or sources, so that the same code audits a library
function, a subprocess and a server across the wire.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import scipy

from labelveil.audit.attacks.one_run import Mechanism, Outputs, View, draw_secrets, rare_event
from labelveil.audit.power import FOUND, rarest_event, smallest_excess
from labelveil.audit.verdict import GATE, Check, Power, Verdict, verdict_of
from labelveil.common.arrays import Floats, Integers
from labelveil.common.entropy import system_entropy
from labelveil.common.errors import ConfigError

SPREAD = 40  # outputs of a finite set are seen so often at least, on average
BINS = 16  # of durations, by quantile

GENERATORS = "numpy.random", "random", "torch.rand", "torch.randn", "torch.randint", "torch.normal"
"""Dotted names under which predictable generators live."""

clock = time.perf_counter_ns
"""What calls are timed with; a test puts one in its place that its machine cannot disturb."""


def byte_equality_check(fetch: Callable[[], bytes]) -> Check:
    """The same request returns identical bytes, however often it is made.

    With fresh noise on each of r requests an average over them spends up to r times ε.
    """
    answers = [hashlib.sha256(fetch()).hexdigest() for _ in range(3)]
    distinct = len(set(answers))
    return Check(
        verdict=verdict_of(distinct == 1),
        tried=f"The same request was made {len(answers)} times.",
        found=f"{distinct} of {len(answers)} answers are different; SHA-256 {answers[0][:16]}…"
        if distinct > 1
        else f"All answers are the same bytes, SHA-256 {answers[0][:16]}….",
        details={"sha256": answers},
    )


def mantissa_check(outputs: Outputs, secrets: Integers, claimed: float) -> Check:
    """No low bits of (n,) outputs exclude one of two labels, which are secret bits:
    floating-point noise does that."""
    distinct = np.unique(outputs).size
    measured, event = rare_event(outputs, secrets)
    rarest = rarest_event(math.inf, outputs.size / 2, claimed, GATE)
    check = measured.check(
        tried=f"{outputs.size:,} outputs for one of two labels were compared by value, quantile"
        f" and lowest set bit; best event: {event}.",
        claimed=claimed,
        details={"distinct_outputs": distinct},
        power=(Power("probability of a bit pattern that one label alone gives", rarest),),
    )
    whole = np.issubdtype(outputs.dtype, np.integer)  # which have no mantissa, however many
    if whole or distinct <= max(outputs.size // SPREAD, 2):
        return check
    how_many = f"{distinct:,} distinct outputs in {outputs.size:,}: noise in floating point."
    return replace(check, verdict=Verdict.FAIL, found=f"{how_many} {check.found}")


def permutation_check(labels: Floats) -> Check:
    """Canary labels, in the order of the rows, look like a random permutation.

    Spearman's rank correlation of label and row number has variance 1/(n - 1) under a random
    order; compared by its normal approximation, two-sided. The (n,) labels were drawn at random, a
    few hundred at least.
    """
    ranks = np.empty(labels.size)
    # ties get random ranks, or runs of equal labels would carry their row numbers
    shuffle = np.argsort(system_entropy().words("ties", 0, labels.size))
    ranks[np.lexsort((shuffle, labels))] = rows = np.arange(labels.size)
    correlation = float(np.corrcoef(ranks, rows)[0, 1])
    p = 2 * float(scipy.special.ndtr(-abs(correlation) * math.sqrt(labels.size - 1)))
    deviations = -scipy.special.ndtri(GATE / 2) - scipy.special.ndtri(1 - FOUND)
    least = float(deviations) / math.sqrt(labels.size - 1)
    return Check(
        verdict=verdict_of(p >= GATE),
        tried=f"The rank correlation of {labels.size:,} canary labels with their row was tested.",
        found=f"Correlation {correlation:.4f}; a random order gives as much with probability"
        f" {p:.3g}.",
        confidence=1 - GATE,
        details={"correlation": correlation, "p": p},
        power=(Power("rank correlation of label and row", least),),
    )


def most_apart(mechanism: Mechanism, labels: Floats, calls: int) -> tuple[int, int]:
    """Which of (k,) labels are slowest and fastest in n single calls, by their mean rank."""
    kinds = draw_secrets(calls, labels.size)
    mechanism(labels[:1])  # the first call pays for what is made once
    nanoseconds = np.empty(calls)
    for at, label in enumerate(labels[kinds]):
        begun = clock()
        mechanism(np.array([label]))
        nanoseconds[at] = clock() - begun
    ranks = np.argsort(np.argsort(nanoseconds)) - calls / 2
    # a sum over the root of its number: a label of few calls does not stand out by chance
    sums = np.bincount(kinds, ranks, labels.size)
    scores = sums / np.sqrt(np.maximum(np.bincount(kinds, minlength=labels.size), 1))
    return int(scores.argmax()), int(scores.argmin())


def timing_check(
    worlds: tuple[Callable[[], float], Callable[[], float]],
    calls: int,
    claimed: float,
    *,
    tried: str,
) -> Check:
    """Judge the time of about n ``calls`` in either world, by the toss of a coin.

    A machine that becomes slower does so for both worlds. Do output and duration, which are one
    observation, say more about a label than ε allows? A call returns what was sent, as a number;
    ``tried`` has places for the medians of both worlds, in milliseconds.
    """
    for call in worlds:
        call()  # the first call pays for what is made once
    order = draw_secrets(2 * calls)
    sent, seconds = np.empty(order.size), np.empty(order.size)
    for at, world in enumerate(order.tolist()):
        begun = clock()
        sent[at] = worlds[world]()
        seconds[at] = (clock() - begun) * 1e-9
    observed = np.column_stack([np.unique(sent, return_inverse=True)[1], seconds])
    measured, _ = rare_event(observed, order, _joint_view)
    medians = [float(np.median(seconds[order == world])) * 1000 for world in (0, 1)]
    excess = smallest_excess(0.5, calls, claimed, GATE)
    return measured.check(
        tried=tried.format(*medians),
        claimed=claimed,
        power=(Power("excess of ε in whether a call is slow", excess),),
    )


def _joint_view(sample: Floats) -> list[View]:
    edges = np.unique(np.quantile(sample[:, 1], np.linspace(0, 1, BINS + 1)[1:-1]))

    def encode(observed: Outputs) -> np.ndarray:
        slowness = np.searchsorted(edges, observed[:, 1], side="right")
        return np.minimum(observed[:, 0].astype(np.int64), last) * (edges.size + 1) + slowness

    last = int(sample[:, 0].max()) + 1  # for outputs that the sample does not have
    return [View("output and duration", encode, (last + 1) * (edges.size + 1))]


def static_check(paths: Iterable[Path], subject: str) -> Check:
    """The static rule: only :mod:`labelveil.common.entropy` may make noise; sources are parsed, not
    run.

    NumPy's generators, torch's and Python's `random` are predictable from their outputs and seeded
    by habit.
    """
    files = list(paths)
    uses = [use for path in files for use in _uses(path)]
    if not files:
        return Check(Verdict.NOT_CHECKABLE, f"Source of {subject}.", "There is none.")
    return Check(
        verdict=verdict_of(not uses),
        tried=f"The syntax trees of {len(files)} source files of {subject} were searched.",
        found="; ".join(uses[:8]) + "." if uses else "No use was found.",
        details={"uses": uses},
    )


def release_sources() -> list[Path]:
    """Source files of the labels party, and of everything of `common` that they import."""
    return sources_of("labelveil.label_party")


def sources_of(package: str) -> list[Path]:
    """Source files of a package of ours, and of everything of `common` that they import.

    Nothing is run; `import` statements are followed through the syntax trees.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(f"package {package!r} is not installed; run this where it is")
    root = Path(next(iter(spec.submodule_search_locations)))
    top = root.parents[package.count(".")]  # where the first of its names lies
    files = dict.fromkeys(sorted(root.rglob("*.py")))
    queue = list(files)
    while queue:
        for _, _, origin in _imports(_parsed(queue.pop())):
            # a name may be a module's, or that of something in it
            for module in (origin, origin.rpartition(".")[0]):
                base = top.joinpath(*module.split("."))
                for path in (base.with_suffix(".py"), base / "__init__.py"):
                    if (
                        module.startswith("labelveil.common.")
                        and path.is_file()
                        and path not in files
                    ):
                        files[path] = None
                        queue.append(path)
    return list(files)


def _uses(path: Path) -> list[str]:
    """Where a file imports a generator, or reaches one through what it imports."""
    tree = _parsed(path)
    imports = list(_imports(tree))
    uses = [(line, origin) for line, _, origin in imports if _is_generator(origin)]
    origins = {name: origin for _, name, origin in imports}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            dotted = ast.unparse(node)
            head, _, rest = dotted.partition(".")
            if head in origins and _is_generator(f"{origins[head]}.{rest}"):
                uses.append((node.lineno, dotted))
    return [f"{path.name}:{line} {name}" for line, name in dict.fromkeys(uses)]


def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def _imports(tree: ast.Module) -> Iterable[tuple[int, str, str]]:
    """Line, name in this file and dotted origin of everything imported."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                yield node.lineno, alias.asname or top, alias.name if alias.asname else top
                yield node.lineno, "", alias.name
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield node.lineno, alias.asname or alias.name, f"{node.module}.{alias.name}"


def _is_generator(dotted: str) -> bool:
    return any(dotted == name or dotted.startswith(f"{name}.") for name in GENERATORS)
