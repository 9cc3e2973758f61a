"""Run the published comparisons: ``python -m benchmarks.published [--out DIR]``.

What was found is kept in the folder, and a run that ends early is taken up by the next.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.published import (
    erm,
    generalization,
    interactive,
    learning,
    one_shot,
    pate,
    regression,
    sources,
    synthesis,
    top_k,
    watch,
)
from benchmarks.published.kept import Kept, OutOfTimeError
from labelveil.common.console import numbers
from tests.data_sets import CENSUS


def _selection(options: argparse.Namespace, kept: Kept) -> Iterator[str]:
    out, trials = options.out, options.trials
    if skipped := sources.missing("checkins_brightkite.parquet"):
        yield f"Check-ins: skipped, {skipped}."
    for data in [*([] if skipped else [sources.brightkite()]), *sources.whole_check_ins()]:
        cells = []
        for epsilon in top_k.EPSILONS:
            for k in top_k.KS:
                name = f"check-ins {data.name} {epsilon:g} {k} {trials}"
                cells += kept(name, top_k.check_ins, data.counts, data.users, k, epsilon, trials)
        yield (
            f"## Recall on check-ins: {data.name}, {data.users:,} users = 1/δ, {trials} trials"
            f"\n\n{top_k.check_ins_table(data.name, cells)}"
        )
    if skipped := sources.missing("covid_nyt_us_states.parquet"):
        yield f"Daily states: skipped, {skipped}."
    else:
        summary = kept("daily states", top_k.covid_plot, out / "covid.png")
        shown = ", ".join(f"{key} {value:g}" for key, value in summary.items())
        yield f"## Daily top states\n\n{shown}\n\n![states](covid.png)"
        for title in ("cases", "new cases"):
            image = f"forty_days {title}.png".replace(" ", "_")
            settings = (5, 1.0, 5, title == "new cases")
            table = kept(f"forty days {title}", top_k.forty_days, out / image, *settings)
            yield f"## Forty days in four groups, by {title}\n\n{table}\n\n![groups]({image})"
    cliffs = {
        gap: [
            cell
            for k in top_k.CLIFF_KS
            for cell in kept(f"cliff {gap} {k} {trials}", top_k.cliff, k, gap, trials)
        ]
        for gap in top_k.GAPS
    }
    top_k.cliff_plot(cliffs, out / "cliff.png")
    yield (
        f"## Recall against k at a fixed gap\n\n{top_k.cliff_table(cliffs)}\n\n![cliff](cliff.png)"
    )
    table = kept("noisy max", top_k.noisy_max_table)
    yield f"## Lead that the best of 20 needs, by the noise of report noisy max\n\n{table}"
    table = kept("noisy max theorem 8", top_k.theorem_8_table)
    yield f"## RNM-Gaussian beside RNM-Laplace, by Theorem 8\n\n{table}"
    yield f"## Many uses of mechanisms alike alone\n\n{kept('composed', top_k.composed)}"


Run = tuple[str, str | None, Callable[[], pate.Outcome]]
"""Name, the file that it needs, and what finds its result."""


def _pate(options: argparse.Namespace, kept: Kept) -> Iterator[str]:
    out = options.out
    from sklearn.linear_model import LogisticRegression
    from sklearn.multioutput import MultiOutputClassifier

    linear = partial(LogisticRegression, max_iter=300)

    def linear_sets() -> Any:
        return MultiOutputClassifier(LogisticRegression(max_iter=200))

    single: list[Run] = [
        (name, file, lambda load=load, size=size: pate.classes(load(), size, linear))  # type: ignore[misc]
        for name, (file, load, size) in sources.TASKS.items()
    ]
    several: list[Run] = []
    for replacing, kind in ((False, "added"), (True, "replaced")):
        several.append(
            (
                f"yeast {kind}",
                "mulan_yeast.parquet",
                lambda r=replacing: pate.label_sets(sources.yeast(), r, linear_sets),  # type: ignore[misc]
            )
        )
        several += [
            (
                f"chest {recall} {kind}",
                "nih_chestxray14_labels.parquet",
                lambda r=replacing, seen=recall: pate.on_vectors(  # type: ignore[misc]
                    "chest X-rays", sources.chest(), seen, r
                ),
            )
            for recall in (0.97, 0.75)
        ]
    for title, runs, image in (
        ("PATE, one class", single, "classes.png"),
        ("PATE, many labels", several, "labels.png"),
    ):
        outcomes, notes = [], []
        for name, needed, run in runs:
            if skipped := needed and sources.missing(needed):
                notes.append(f"Skipped: {skipped}.")
                continue
            outcomes.append(kept(f"pate {name}", run))
        if outcomes:
            pate.plot(outcomes, out / image)
            notes.append(f"{pate.table(outcomes)}\n\n![{title}]({image})")
        yield f"## {title}, {pate.TEACHERS} teachers\n\n" + "\n\n".join(notes)
    faces = sources.missing(sources.CELEBA)
    vectors = sources.like_celeba() if faces else sources.celeba()
    whose = "drawn" if faces else "read"
    runs = [
        kept(f"pate attributes {whose} {seed}", pate.many_attributes, vectors, 40, seed)
        for seed in range(pate.SEEDS)
    ]
    ratios = "\n".join(
        f"- ε of {one} over that of {other}: {pate.ratio(runs, one, other)}"
        for one in ("StableTopK", "StableTopK, Gaussian choice")
        for other in ("PATE-τ, L1", "PATE-τ, L2")
    )
    yield (
        f"## 40 attributes a face, {2 * pate.TEACHERS} teachers, 40 queries: least ε within 0.01 of"
        f" noise-free votes, {pate.SEEDS} repetitions\n\n"
        + (f"Drawn in CelebA's sizes: {faces}.\n\n" if faces else "")
        + f"{pate.table_of_models({'40 attributes': runs})}\n\n{ratios}"
    )
    models: dict[str, list[pate.Outcome]] = {}
    for model, file in pate.MODELS.items():
        if not (file and sources.missing(file)):
            models[model] = [
                kept(f"pate model {model} {seed}", pate.of_model, model, seed)
                for seed in range(pate.SEEDS)
            ]
    yield (
        "## Teachers who err alike, or are trained: least ε within 0.01 of noise-free votes, 40"
        f" queries, {pate.SEEDS} draws\n\n{pate.table_of_models(models)}"
    )
    agreed = [
        outcome
        for r in (False, True)
        for outcome in kept(f"pate agreed {'replaced' if r else 'added'}", pate.by_set_size, r)
    ]
    pate.plot(agreed[:5], out / "agreed.png")
    yield (
        "## Agreed label sets of growing size, 40 labels, 200 teachers\n\n"
        f"{pate.table(agreed)}\n\n![agreed](agreed.png)"
    )


def _synthesis(options: argparse.Namespace, kept: Kept) -> Iterator[str]:
    out = options.out
    table = kept("synthesis BLR", synthesis.blr_table)
    yield f"## BLR on eight cells, seven thresholds\n\n{table}"
    if skipped := CENSUS.missing:
        yield f"Census marginals: skipped, {skipped}."
        return
    cells = []
    for epsilon in synthesis.EPSILONS:
        for sets in synthesis.SETS:
            name = f"synthesis census {float(epsilon):g} {sets}"
            cells += kept(name, synthesis.census, epsilon, sets, synthesis.RUNS)
    synthesis.plot(cells, out / "synthesis.png")
    yield (
        f"## Census marginals: mean (largest) error, percent of records, {synthesis.RUNS} runs\n\n"
        f"{synthesis.table_of(cells)}\n\n![census marginals](synthesis.png)"
    )


def _generalization(options: argparse.Namespace, kept: Kept) -> Iterator[str]:
    out = options.out
    table = kept("holdouts", generalization.plot, out / "holdout.png")
    records, epsilon = generalization.RECORDS, float(generalization.MECHANISM.epsilon)
    yield (
        f"## Features selected on a holdout of {records:,}, Thresholdout at ε = {epsilon:g}\n\n"
        f"{table}\n\n![holdouts](holdout.png)"
    )
    table = kept("gaps", generalization.bounds_table)
    yield f"## Measured gaps beside their bounds\n\n{table}"


def _interactive(options: argparse.Namespace, kept: Kept) -> Iterator[str]:
    out, trials = options.out, options.trials
    table = kept("calls", interactive.calls_table)
    yield f"## Calls until τ hits, δ = 1e-6\n\n{table}"
    table = kept("one shot scales", one_shot.scales_table)
    setting = f"ε = {float(one_shot.EPSILON):g}, δ = {float(one_shot.DELTA):g}"
    yield f"## Top-k in one shot: scale of the noise, {setting}\n\n{table}"
    if skipped := sources.missing("covid_nyt_us_states.parquet"):
        yield f"Top-k in one shot of states: skipped, {skipped}."
    else:
        table = kept("one shot states", one_shot.states_table)
        yield f"## Top-k in one shot: states by cases so far, {setting} a day\n\n{table}"
    if skipped := sources.missing("checkins_brightkite.parquet"):
        yield f"Stream of places: skipped, {skipped}."
    else:
        repeats = max(1, trials // 20)
        found = []
        for budget in interactive.BUDGETS:
            name = f"stream {budget:g} {repeats}"
            found += kept(name, interactive.stream, budget, repeats)
        interactive.stream_plot(found, out / "stream.png")
        yield (
            f"## A stream of places, δ = 1e-6, {repeats} trials\n\n"
            f"{interactive.stream_table(found)}\n\n![stream](stream.png)"
        )
    rows, notes = [], []
    for task, (needed, load, classes) in sources.TASKS.items():
        if skipped := needed and sources.missing(needed):
            notes.append(f"Skipped: {skipped}.")
            continue
        for teachers in (100, 250) if task == "optdigits" else (100,):
            name = f"votes {task} {teachers}"
            votes = kept(name, interactive.votes_of, load(), classes, teachers)
            for queries in interactive.QUERIES:
                name = f"costs {task} {teachers} {queries}"
                rows += kept(name, interactive.costs, votes, queries)
    interactive.costs_plot(rows, out / "costs.png")
    notes.append(f"{interactive.costs_table(rows)}\n\n![costs](costs.png)")
    yield "## What an answer of PATE costs\n\n" + "\n\n".join(notes)


def _regression(options: argparse.Namespace, kept: Kept) -> Iterator[str]:
    epsilons = tuple(numbers("--epsilons", options.epsilons)) if options.epsilons else ()
    size = regression.Size(options.full, options.splits, epsilons)
    return regression.report(options.out, size, kept, options.experiment)


PARTS: dict[str, Callable[[argparse.Namespace, Kept], Iterator[str]]] = {
    "regression": _regression,
    "top-k": _selection,
    "pate": _pate,
    "interactive": _interactive,
    "synthesis": _synthesis,
    "generalization": _generalization,
    "erm": lambda options, kept: erm.report(options.out, kept),
    "learning": lambda options, kept: learning.report(kept),
    "watch": lambda options, kept: watch.report(kept),
}


def main() -> None:
    """Write tables (Markdown) and plots (PNG) into a folder; skip what has no data, and say so."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/published"))
    parser.add_argument(
        "--trials", type=int, default=100, help="trials of a cell (streams: a twentieth)"
    )
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin nothing after these")
    parser.add_argument(
        "--full", action="store_true", help="regression: all rows, ten splits, every ε (days)"
    )
    names = ["label-noise", *(one.name for one in regression.EXPERIMENTS)]
    parser.add_argument("--experiment", choices=names, help="regression: only this one")
    parser.add_argument("--splits", type=int, help="regression: so many")
    parser.add_argument("--epsilons", default="", help="regression: these, such as 0.5,2")
    options = parser.parse_args()
    kept, sections = Kept(options.out / "kept", options.minutes), list[str]()
    report = options.out / "published.md"
    try:
        for part in PARTS if options.only is None else (options.only,):
            try:
                sections.extend(PARTS[part](options, kept))
            except OutOfTimeError:
                sections.append(f"{part}: to be continued by the next run.")
    finally:
        report.write_text("\n\n".join(sections) + "\n", encoding="utf-8")
        print(f"wrote {report}")


if __name__ == "__main__":
    main()
