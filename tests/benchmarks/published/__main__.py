"""Run the published comparisons: ``python -m tests.benchmarks.published [--out DIR]``."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common.console import progress
from tests.benchmarks.published import (
    erm,
    generalization,
    interactive,
    learning,
    pate,
    regression,
    sources,
    synthesis,
    top_k,
    watch,
)

PARTS = (
    "regression",
    "top-k",
    "pate",
    "interactive",
    "synthesis",
    "generalization",
    "erm",
    "learning",
    "watch",
)


def main() -> None:
    """Write tables (Markdown) and plots (PNG) into a folder; skip what has no data, and say so."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/published"))
    parser.add_argument(
        "--trials", type=int, default=100, help="trials of a cell (streams: a twentieth)"
    )
    parser.add_argument("--only", choices=PARTS, default=None)
    parser.add_argument(
        "--full", action="store_true", help="regression: all rows, ten splits, every ε (days)"
    )
    names = ["label-noise", *(one.name for one in regression.EXPERIMENTS)]
    parser.add_argument("--experiment", choices=names, help="regression: only this one")
    options = parser.parse_args()
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    from common.report.figures import PAPER, STYLE

    plt.rcParams.update({**STYLE, "savefig.facecolor": PAPER, "text.parse_math": True})

    options.out.mkdir(parents=True, exist_ok=True)
    parts: list[str] = []
    run: dict[str, Callable[[], list[str]]] = {
        "regression": lambda: regression.report(options.out, options.full, plt, options.experiment),
        "top-k": lambda: _selection(options.out, options.trials, plt),
        "pate": lambda: _pate(options.out, plt),
        "interactive": lambda: _interactive(options.out, options.trials, plt),
        "synthesis": lambda: _synthesis(options.out, plt),
        "generalization": lambda: _generalization(options.out, plt),
        "erm": lambda: erm.report(options.out, plt),
        "learning": learning.report,
        "watch": watch.report,
    }
    for part in PARTS if options.only is None else (options.only,):
        parts += run[part]()
    report = options.out / "published.md"
    report.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    print(f"wrote {report}")


def _selection(out: Path, trials: int, plt: Any) -> list[str]:
    parts = []
    skipped = sources.missing("checkins_brightkite.parquet")
    if skipped:
        parts.append(f"Check-ins: skipped, {skipped}.")
    for data in [*([] if skipped else [sources.brightkite()]), *sources.whole_check_ins()]:
        with progress() as bar:
            cells = len(top_k.EPSILONS) * len(top_k.KS) * len(top_k.NAMES)
            task = bar.add_task(data.name, total=cells, note="")
            result = top_k.check_ins(
                data.counts,
                data.users,
                trials,
                lambda b=bar, t=task: b.advance(t),  # type: ignore[misc]
            )
        parts.append(
            f"## Recall on check-ins: {data.name}, {data.users:,} users = 1/δ, {trials} trials"
            f"\n\n{top_k.check_ins_table(data.name, result)}"
        )
    skipped = sources.missing("covid_nyt_us_states.parquet")
    if skipped:
        parts.append(f"Daily states: skipped, {skipped}.")
    else:
        summary = top_k.covid_plot(out / "covid.png", plt)
        shown = ", ".join(f"{key} {value:g}" for key, value in summary.items())
        parts.append(f"## Daily top states\n\n{shown}\n\n![states](covid.png)")
        table = top_k.forty_days(out / "forty_days.png", plt)
        parts.append(f"## Forty days in four groups\n\n{table}\n\n![groups](forty_days.png)")
    table = top_k.cliff_plot(out / "cliff.png", plt, trials)
    parts.append(f"## Recall against k at a fixed gap\n\n{table}\n\n![cliff](cliff.png)")
    parts.append(f"## Many uses of mechanisms alike alone\n\n{top_k.composed()}")
    return parts


def _pate(out: Path, plt: Any) -> list[str]:
    from sklearn.linear_model import LogisticRegression
    from sklearn.multioutput import MultiOutputClassifier

    def linear() -> Any:
        return LogisticRegression(max_iter=300)

    def linear_sets() -> Any:
        return MultiOutputClassifier(LogisticRegression(max_iter=200))

    single: list[tuple[str | None, Callable[[], pate.Outcome]]] = [
        (None, lambda: pate.classes(sources.digits(), 10, linear)),
        ("optdigits.parquet", lambda: pate.classes(sources.optdigits(), 10, linear)),
        ("letter_recognition.parquet", lambda: pate.classes(sources.letters(), 26, linear)),
    ]
    several: list[tuple[str | None, Callable[[], pate.Outcome]]] = []
    for replacing in (False, True):
        several += [
            (
                "mulan_yeast.parquet",
                lambda r=replacing: pate.label_sets(sources.yeast(), r, linear_sets),  # type: ignore[misc]
            ),
            *(
                (
                    "nih_chestxray14_labels.parquet",
                    lambda r=replacing, seen=recall: pate.on_vectors(  # type: ignore[misc]
                        "chest X-rays", sources.chest(), seen, r
                    ),
                )
                for recall in (0.97, 0.75)
            ),
        ]
    parts = []
    for title, runs, image in (
        ("PATE, one class", single, "classes.png"),
        ("PATE, many labels", several, "labels.png"),
    ):
        outcomes, notes = [], []
        for needed, run in runs:
            skipped = needed and sources.missing(needed)
            if skipped:
                notes.append(f"Skipped: {skipped}.")
                continue
            start = time.perf_counter()
            outcomes.append(run())
            print(f"{outcomes[-1].task}: {time.perf_counter() - start:.1f} s")
        if outcomes:
            pate.plot(outcomes, out / image, plt)
            notes.append(f"{pate.table(outcomes)}\n\n![{title}]({image})")
        parts.append(f"## {title}, {pate.TEACHERS} teachers\n\n" + "\n\n".join(notes))
    faces = sources.missing(sources.CELEBA)
    vectors = sources.like_celeba() if faces else sources.celeba()
    attributes = pate.many_attributes(vectors)
    parts.append(
        f"## 40 attributes a face, {2 * pate.TEACHERS} teachers\n\n"
        + (f"Drawn in CelebA's sizes: {faces}.\n\n" if faces else "")
        + pate.table([attributes], slack=0.01)
    )
    agreed = [outcome for r in (False, True) for outcome in pate.by_set_size(r)]
    pate.plot(agreed[:5], out / "agreed.png", plt)
    parts.append(
        "## Agreed label sets of growing size, 40 labels, 200 teachers\n\n"
        f"{pate.table(agreed)}\n\n![agreed](agreed.png)"
    )
    return parts


def _synthesis(out: Path, plt: Any) -> list[str]:
    parts = [f"## BLR on eight cells, seven thresholds\n\n{synthesis.blr_table()}"]
    skipped = sources.CENSUS.missing
    if skipped:
        return [*parts, f"Census marginals: skipped, {skipped}."]
    with progress() as bar:
        count = len(synthesis.EPSILONS) * len(synthesis.SETS) * len(synthesis.NAMES)
        task = bar.add_task("census marginals", total=count, note="")
        cells = synthesis.census(3, lambda: bar.advance(task))
    synthesis.plot(cells, out / "synthesis.png", plt)
    return [
        *parts,
        "## Census marginals: mean (largest) error, percent of records\n\n"
        f"{synthesis.table_of(cells)}\n\n![census marginals](synthesis.png)",
    ]


def _generalization(out: Path, plt: Any) -> list[str]:
    table = generalization.plot(out / "holdout.png", plt)
    records, epsilon = generalization.RECORDS, float(generalization.MECHANISM.epsilon)
    return [
        f"## Features selected on a holdout of {records:,}, Thresholdout at ε = {epsilon:g}\n\n"
        f"{table}\n\n![holdouts](holdout.png)",
        f"## Measured gaps beside their bounds\n\n{generalization.bounds_table()}",
    ]


def _interactive(out: Path, trials: int, plt: Any) -> list[str]:
    parts = [f"## Calls until τ hits, δ = 1e-6\n\n{interactive.calls_table()}"]
    skipped = sources.missing("checkins_brightkite.parquet")
    if skipped:
        parts.append(f"Stream of places: skipped, {skipped}.")
    else:
        repeats = max(1, trials // 20)
        with progress() as bar:
            task = bar.add_task("stream of places", total=len(interactive.BUDGETS), note="")
            found = interactive.stream(repeats, lambda: bar.advance(task))
        interactive.stream_plot(found, out / "stream.png", plt)
        parts.append(
            f"## A stream of places, δ = 1e-6, {repeats} trials\n\n"
            f"{interactive.stream_table(found)}\n\n![stream](stream.png)"
        )
    tasks: list[tuple[str | None, Callable[[], interactive.Votes]]] = [
        (None, lambda: interactive.votes_of(sources.digits(), 10, 100)),
        ("optdigits.parquet", lambda: interactive.votes_of(sources.optdigits(), 10, 100)),
        ("optdigits.parquet", lambda: interactive.votes_of(sources.optdigits(), 10, 250)),
        ("letter_recognition.parquet", lambda: interactive.votes_of(sources.letters(), 26, 100)),
    ]
    rows, notes = [], []
    for needed, make in tasks:
        skipped = needed and sources.missing(needed)
        if skipped:
            notes.append(f"Skipped: {skipped}.")
            continue
        votes = make()
        for queries in interactive.QUERIES:
            rows += interactive.costs(votes, queries)
        print(f"{votes.name}: done")
    interactive.costs_plot(rows, out / "costs.png", plt)
    notes.append(f"{interactive.costs_table(rows)}\n\n![costs](costs.png)")
    parts.append("## What an answer of PATE costs\n\n" + "\n\n".join(notes))
    return parts


if __name__ == "__main__":
    main()
