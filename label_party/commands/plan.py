"""``label-party plan``: compare randomizers; a table, JSON, a plot."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from itertools import cycle, groupby
from pathlib import Path
from typing import TYPE_CHECKING

from labelveil.common.config import setting
from labelveil.common.config.answers import Json, print_json
from labelveil.common.console import numbers, progress, stderr
from labelveil.common.outputs import check_plot
from labelveil.common.randomizers.design.conditionals import EXPLAINED
from labelveil.common.release.limits import MANIFEST_BYTES
from labelveil.label_party.commands.options import options
from labelveil.label_party.config.sections import LabelPartyConfig

if TYPE_CHECKING:
    from labelveil.common.randomizers.grid import Grid
    from labelveil.label_party.release.plan import Plan, PlanRow
    from labelveil.label_party.release.plan_divisions import DivisionPlan
    from labelveil.label_party.release.prior_knowledge import PriorKnowledge

_WIDTH = 80
_LINE = "{}{:<21}{:>8}{:>12}{:>8}{:>7}{:>11}{:>11}"
_COLUMNS = ("outputs", "label error", "bias", "worth", "effective", "predicted")
_ROUNDING = 1e-9
"""A bias that is less of the label error is that of floating point."""


class PlanOptions(Json):
    epsilons: str = setting("0.5,1,2,4", "Budgets to compare.", metavar="NUMBER,…")
    prior_release: Path | None = setting(
        None, "A release (or its manifest) whose noisy prior to use."
    )
    prior_file: Path | None = setting(
        None,
        "Public knowledge: a table with columns label, weight; of several labels a column named as"
        " each of them, and weight.",
    )
    raw_labels: bool = setting(
        False, "Use the labels themselves. The choice leaks.", flag="--raw-labels"
    )
    rows: int | None = setting(None, "Number of events; default as submitted, or 20,000.", ge=1)
    explained: float = setting(
        EXPLAINED,
        "Share of the label's variance that the features are taken to explain.",
        gt=0,
        lt=1,
    )
    plot: Path | None = setting(None, "Draw the table to this picture.")


@options("randomizer.loss")
def plan(config: LabelPartyConfig, wanted: PlanOptions) -> None:
    from labelveil.common.randomizers.base import check_epsilon
    from labelveil.common.release.size import largest_manifest
    from labelveil.label_party.release import plan as planning
    from labelveil.label_party.release.plan_divisions import plan_divisions
    from labelveil.label_party.release.prior_knowledge import LEAK_WARNING, choose_knowledge
    from labelveil.label_party.release.strata import strata_notes

    events = planning.planned_rows(config, wanted.rows)
    knowledge = choose_knowledge(
        config, wanted.prior_release, wanted.prior_file, wanted.raw_labels, events
    )
    budgets = numbers("--epsilons", wanted.epsilons)
    for epsilon in budgets:
        check_epsilon(epsilon)
    if wanted.plot is not None:
        check_plot(wanted.plot)
    compared: Plan | DivisionPlan
    with progress(quiet=wanted.as_json) as bar:
        task = bar.add_task("Comparing", total=len(budgets), note="")

        def advance(epsilon: float) -> None:
            bar.update(task, advance=1)

        if len(config.labels) > 1:
            compared = plan_divisions(config, knowledge, budgets, advance, wanted.explained)
        else:
            compared = planning.make_plan(
                config, knowledge, budgets, advance, explained=wanted.explained
            )
    if knowledge.leaks:
        stderr.print(f"warning: {LEAK_WARNING}", style="bold red", highlight=False)
    message = config.plan_message(events)
    most, grids = largest_manifest(message), _grids(config, message.grids, knowledge)
    grids += (strata := strata_notes(config, budgets))
    if wanted.as_json:
        print_json(
            _json(compared)
            | {"largest_manifest": most, "grids": list(map(len, message.grids)), "strata": strata}
        )
    elif isinstance(compared, planning.Plan):
        print_plan(compared, most, grids)
    else:
        print_divisions(compared, most, grids)
    if wanted.plot is not None:
        draw_plan(compared, wanted.plot)


def _grids(config: LabelPartyConfig, grids: Sequence[Grid], knowledge: PriorKnowledge) -> list[str]:
    """Say where labels are placed and, of the labels themselves, how many lie between."""
    import numpy as np

    notes = []
    for place, (label, grid) in enumerate(zip(config.labels, grids, strict=True)):
        of = f" of {label.name}" if len(grids) > 1 else ""
        moved = ""
        if knowledge.leaks:
            (known,) = knowledge.known
            labels = np.repeat(known.values[:, place], known.weights.astype(np.int64))
            moved = f"; {grid.rounding_effect(labels)}"
        notes.append(f"Grid{of} as configured: {grid}{moved}.")
    return notes


def print_divisions(plan: DivisionPlan, manifest: int, grids: Sequence[str]) -> None:
    """Print what each label's model is predicted to lose, by ε and division."""
    names = [label.name for label in plan.terms]
    cells = "".join(f"{name:>14.13}" for name in names)
    print(f"{'ε':<6}  {'division':<10}{'ε prior':>9}{cells}")
    for row in plan.rows:
        mark = "*" if row.auto else " "
        errors = "".join(f"{error:>14.5g}" for error in row.predicted_errors)
        print(f"{row.epsilon:<6g}{mark} {row.division:<10}{row.epsilon_prior:>9.3g}{errors}")
    bounds = {"constant": plan.constant_errors, "true labels": plan.true_label_errors}
    for name, errors_of_it in bounds.items():
        print(f"{'':<6}  {name:<19}" + "".join(f"{error:>14.5g}" for error in errors_of_it))
    notes = [
        f"Predicted error of a model of each label, {plan.knowledge.rows:,} events, over"
        f" {plan.knowledge.source}. Features explain {plan.explained:.0%} of the variances;"
        " --explained sets that.",
        '*: what "auto" takes here; a release decides by its own noisy histogram. joint: one'
        " channel for all labels; separate: the same histogram and a channel a label; split: a"
        " histogram and a channel a label.",
        *([plan.derived] if plan.derived else []),
    ]
    print()
    _print_notes([*notes, *grids], manifest)


def print_plan(plan: Plan, manifest: int, grids: Sequence[str]) -> None:
    """Print a plan; the best candidate of every ε comes first."""
    for epsilon, rows in groupby(plan.rows, key=lambda row: row.epsilon):
        members = list(rows)
        print(
            f"ε = {epsilon:g}: prior {members[0].epsilon_prior:.3g},"
            f" labels {members[0].epsilon_labels:.3g}"
        )
        print(_LINE.format(" ", "randomizer", *_COLUMNS))
        for row in members:
            assessed = row.assessment
            seen = assessed.bias > _ROUNDING * assessed.label_error
            print(
                _LINE.format(
                    "*" if row.auto else " ",
                    assessed.name,
                    assessed.outputs,
                    f"{assessed.label_error:.4g}",
                    f"{assessed.bias:.2g}" if seen else "0",
                    f"{assessed.effective_share:.2%}",
                    f"{assessed.effective_sample_size:,.0f}",
                    f"{assessed.predicted_error:.5g}",
                )
            )
        print()
    _print_notes([*_notes(plan), *grids], manifest)


def _print_notes(notes: list[str], manifest: int) -> None:
    """Print lines that a narrow terminal has room for, and how large the release's manifest is."""
    size = (
        f"The release as configured has a manifest of at most {manifest:,} bytes; clients accept"
        f" {MANIFEST_BYTES:,}."
    )
    for line in [*notes, size]:
        print(textwrap.fill(line, _WIDTH, break_on_hyphens=False))


def _notes(plan: Plan) -> list[str]:
    notes = [
        f"{plan.knowledge.rows:,} events, {plan.loss} loss, over {plan.knowledge.source}.",
        f"A constant prediction would have {plan.constant_error:.5g}, a model trained on true"
        f" labels {plan.true_label_error:.5g}, if the features explain {plan.explained:.0%} of the"
        " label's variance; --explained sets that.",
        '*: what "auto" takes. Of two labels no channel says more than randomized response.'
        " Of more, optimal-design has the least predicted error, but for at most 5 % that make"
        " every statistic of the label decodable; others may be ahead without.",
        "predicted: error of the trained model. label error: distance of the message from the"
        " label. worth: how many true labels one randomized label is worth to the model;"
        " effective: events times worth.",
    ]
    if plan.loss == "squared":
        known = (
            f"{_half_width(plan, row):.2g} at ε = {row.epsilon:g}" for row in plan.rows if row.auto
        )
        notes.append(
            "How well R² will be known from the release alone, 95 %, whatever labels have to do"
            f" with features: ± {', '.join(known)}. Of a heavy tail that of labels clipped below it"
            " is known far better, and told beside it."
        )
    notes += [f"not for this grid: {name}: {reason}" for name, reason in plan.unfit.items()]
    return notes


def _half_width(plan: Plan, row: PlanRow) -> float:
    """Of the interval of R², 95 %: of a gain that is linear in labels decoded without bias."""
    from scipy.special import ndtri

    noise = row.assessment.label_error / plan.constant_error / plan.knowledge.rows
    return float(2 * ndtri(0.975) * (plan.explained * noise) ** 0.5)


def _json(plan: Plan | DivisionPlan) -> dict[str, object]:
    from labelveil.label_party.release.plan import Plan

    facts = {
        "events": plan.knowledge.rows,
        "prior": plan.knowledge.source,
        "leaks": plan.knowledge.leaks,
        "explained": plan.explained,
        "candidates": [row.to_json() for row in plan.rows],
    }
    if isinstance(plan, Plan):
        names = ["loss", "constant_error", "true_label_error", "unfit"]
    else:
        names = ["constant_errors", "true_label_errors", "derived"]
        facts["labels"] = [label.name for label in plan.terms]
    return facts | {name: getattr(plan, name) for name in names}


def draw_plan(plan: Plan | DivisionPlan, path: Path) -> None:
    """Draw predicted errors against ε; ``path`` is checked already.

    Of one label by randomizer, with the label's own error beside it; of several by division, a
    picture each.
    """
    from labelveil.common.report.figures import (
        MARKERS,
        clean,
        epsilon_axis,
        level,
        logarithmic,
        picture,
    )
    from labelveil.label_party.release.plan import Plan

    epsilons = [row.epsilon for row in plan.rows]
    curves: dict[tuple[int, str], list[tuple[float, float]]] = {}
    if isinstance(plan, Plan):
        best, levels = "optimal-design", [(plan.constant_error, plan.true_label_error)]
        titles = ["Predicted error of the model", "Error of the randomized label"]
        losses = [plan.loss, plan.loss]
        for row in sorted(plan.rows, key=lambda row: row.assessment.name):
            assessed = row.assessment
            for place, error in enumerate((assessed.predicted_error, assessed.label_error)):
                curves.setdefault((place, assessed.name), []).append((row.epsilon, error))
    else:
        best, levels = "joint", list(zip(plan.constant_errors, plan.true_label_errors, strict=True))
        titles = [f"Predicted error of the model of {label.name}" for label in plan.terms]
        losses = [label.loss for label in plan.terms]
        for each in plan.rows:
            for place, error in enumerate(each.predicted_errors):
                curves.setdefault((place, each.division), []).append((each.epsilon, error))
    with picture(path, 5.5 * len(titles), 4.6) as figure:
        axes = figure.subplots(1, len(titles))
        marker = dict(zip(dict.fromkeys(name for _, name in curves), cycle(MARKERS), strict=False))
        for (place, name), points in curves.items():
            width = 2.6 if name == best else 1.2
            axes[place].plot(
                *zip(*points, strict=True), marker=marker[name], linewidth=width, label=name
            )
        for place, (title, loss) in enumerate(zip(titles, losses, strict=True)):
            axes[place].set_title(title)
            epsilon_axis(axes[place], epsilons)
            clean(axes[place])
            if place < len(levels):
                axes[place].set_ylabel(f"{loss} loss")
                level(axes[place], levels[place][0], "constant")
                level(axes[place], levels[place][1], "true\nlabels")
            else:  # that of the randomized label itself
                logarithmic(axes[place], "y", f"{loss} loss")
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
