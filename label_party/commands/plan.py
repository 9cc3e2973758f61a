"""``label-party plan``: compare randomizers; a table, JSON, a plot."""

from __future__ import annotations

import textwrap
from itertools import cycle, groupby
from pathlib import Path
from typing import TYPE_CHECKING

from common.config import setting
from common.config.answers import Json, print_json
from common.console import numbers, progress, stderr
from common.errors import ConfigError
from common.outputs import check_plot
from common.randomizers.design.conditionals import EXPLAINED
from label_party.commands.options import options
from label_party.config.sections import LabelPartyConfig

if TYPE_CHECKING:
    from label_party.release.plan import Plan
    from label_party.release.plan_divisions import DivisionPlan

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
    prior_file: Path | None = setting(None, "Public knowledge: a table with columns label, weight.")
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
    """Compare randomizers by the model they will give, without looking at a label."""
    from common.randomizers.base import check_epsilon
    from label_party.release import plan as planning

    if len(config.labels) > 1:
        plan_several(config, wanted)
        return
    events = planning.planned_rows(config, wanted.rows)
    knowledge = planning.choose_knowledge(
        config, wanted.prior_release, wanted.prior_file, wanted.raw_labels, events
    )
    budgets = numbers("--epsilons", wanted.epsilons)
    for epsilon in budgets:
        check_epsilon(epsilon)
    if wanted.plot is not None:
        check_plot(wanted.plot)
    with progress(quiet=wanted.as_json) as bar:
        task = bar.add_task("Comparing", total=len(budgets), note="")
        found = planning.make_plan(
            config,
            knowledge,
            budgets,
            lambda epsilon: bar.update(task, advance=1),
            explained=wanted.explained,
        )
    if knowledge.leaks:
        stderr.print(f"warning: {planning.LEAK_WARNING}", style="bold red", highlight=False)
    print_plan(found, as_json=wanted.as_json)
    if wanted.plot is not None:
        draw_plan(found, wanted.plot)


def plan_several(config: LabelPartyConfig, wanted: PlanOptions) -> None:
    """Compare the ways in which several labels can share one ε."""
    from common.randomizers.base import check_epsilon
    from label_party.release.plan import planned_rows
    from label_party.release.plan_divisions import plan_divisions

    asked = [wanted.prior_release, wanted.prior_file, wanted.raw_labels or None, wanted.plot]
    if any(one is not None for one in asked):
        raise ConfigError(
            "a plan for several labels assumes nothing about them; leave out --prior-release,"
            " --prior-file, --raw-labels and --plot"
        )
    budgets = numbers("--epsilons", wanted.epsilons)
    for epsilon in budgets:
        check_epsilon(epsilon)
    with progress(quiet=wanted.as_json) as bar:
        task = bar.add_task("Comparing", total=len(budgets), note="")
        found = plan_divisions(
            config.terms,
            planned_rows(config, wanted.rows),
            budgets,
            lambda epsilon: bar.update(task, advance=1),
            wanted.explained,
            config.privacy.group,
            config.privacy.prior_share,
        )
    print_divisions(found, as_json=wanted.as_json)


def print_divisions(plan: DivisionPlan, *, as_json: bool) -> None:
    """Print what each label's model is predicted to lose, by ε and division."""
    names = [one.name for one in plan.terms]
    if as_json:
        constants, truths = plan.constant_errors, plan.true_label_errors
        print_json(
            {
                "events": plan.events,
                "explained": plan.explained,
                "labels": names,
                "constant_errors": constants,
                "true_label_errors": truths,
                "derived": plan.derived,
                "candidates": [row.to_json() for row in plan.rows],
            }
        )
        return
    cells = "".join(f"{name:>14.13}" for name in names)
    print(f"{'ε':<6}  {'division':<10}{'ε prior':>9}{cells}")
    for row in plan.rows:
        mark = "*" if row.auto else " "
        errors = "".join(f"{error:>14.5g}" for error in row.predicted_errors)
        print(f"{row.epsilon:<6g}{mark} {row.division:<10}{row.epsilon_prior:>9.3g}{errors}")
    for name, known in (
        ("constant", plan.constant_errors),
        ("true labels", plan.true_label_errors),
    ):
        print(f"{'':<6}  {name:<19}" + "".join(f"{error:>14.5g}" for error in known))
    notes = [
        f"Predicted error of a model of each label, {plan.events:,} events, over uniform labels:"
        f" nothing is known about them. Features explain {plan.explained:.0%} of the variances;"
        " --explained sets that.",
        '*: what "auto" takes here; a release decides by its own noisy histogram. joint: one'
        " channel for all labels; separate: the same histogram and a channel a label; split: a"
        " histogram and a channel a label.",
        *([plan.derived] if plan.derived else []),
    ]
    print()
    for line in notes:
        print(textwrap.fill(line, _WIDTH, break_on_hyphens=False))


def print_plan(plan: Plan, *, as_json: bool) -> None:
    """Print a plan; the best candidate of every ε comes first."""
    if as_json:
        print_json(_json(plan))
        return
    for epsilon, rows in groupby(plan.rows, key=lambda row: row.epsilon):
        members = list(rows)
        print(
            f"ε = {epsilon:g}: prior {members[0].epsilon_prior:.3g},"
            f" labels {members[0].epsilon_labels:.3g}"
        )
        print(_LINE.format(" ", "randomizer", *_COLUMNS))
        for row in members:
            found = row.assessment
            seen = found.bias > _ROUNDING * found.label_error
            print(
                _LINE.format(
                    "*" if row.auto else " ",
                    found.name,
                    found.outputs,
                    f"{found.label_error:.4g}",
                    f"{found.bias:.2g}" if seen else "0",
                    f"{found.effective_share:.2%}",
                    f"{found.effective_sample_size:,.0f}",
                    f"{found.predicted_error:.5g}",
                )
            )
        print()
    for line in _notes(plan):
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
    notes += [f"not for this grid: {name}: {reason}" for name, reason in plan.unfit.items()]
    return notes


def _json(plan: Plan) -> dict[str, object]:
    return {
        "events": plan.knowledge.rows,
        "loss": plan.loss,
        "prior": plan.knowledge.source,
        "leaks": plan.knowledge.leaks,
        "constant_error": plan.constant_error,
        "true_label_error": plan.true_label_error,
        "explained": plan.explained,
        "candidates": [row.to_json() for row in plan.rows],
        "unfit": plan.unfit,
    }


def draw_plan(plan: Plan, path: Path) -> None:
    """Draw predicted model error and label error against ε; ``path`` is checked already."""
    from common.report.figures import MARKERS, clean, epsilon_axis, level, logarithmic, picture

    with picture(path, 11, 4.6) as figure:
        left, right = figure.subplots(1, 2)
        names = sorted({row.assessment.name for row in plan.rows})
        for name, marker in zip(names, cycle(MARKERS), strict=False):
            rows = [row for row in plan.rows if row.assessment.name == name]
            epsilons = [row.epsilon for row in rows]
            width = 2.6 if name == "optimal-design" else 1.2
            for axes, errors in (
                (left, [row.assessment.predicted_error for row in rows]),
                (right, [row.assessment.label_error for row in rows]),
            ):
                axes.plot(epsilons, errors, marker=marker, linewidth=width, label=name)
        level(left, plan.constant_error, "constant")
        level(left, plan.true_label_error, "true\nlabels")
        left.set_title("Predicted error of the model")
        right.set_title("Error of the randomized label")
        for axes in (left, right):
            epsilon_axis(axes, [row.epsilon for row in plan.rows])
            clean(axes)
        left.set_ylabel(f"{plan.loss} loss")
        logarithmic(right, "y", f"{plan.loss} loss")
        figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=4)
