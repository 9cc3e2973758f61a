"""Before the irreversible step: what would be read and spent, what speaks against it, a question.

Counts and warnings tell of raw labels: everything here goes to the labels party's console, standard
error but for ``--dry-run``'s facts, and with ``--quiet`` and no terminal nothing is said at all,
for jobs whose output is collected by others.

Without a terminal a purchase goes on whatever the warnings say. A job that stopped by itself would
tell the partner, by an epoch that does not come, what the labels are like; that is a rule about
labels that no ε pays for. The rule "every epoch is released" tells nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from labelveil.common.config import Section, setting
from labelveil.common.errors import LabelveilError, ReleaseError
from labelveil.common.signals import terminated_as_interrupted
from labelveil.common.streams import flush_output, say
from labelveil.label_party.commands.options import OutputOptions
from labelveil.label_party.config.sections import LabelPartyConfig
from labelveil.label_party.store.budget import short

if TYPE_CHECKING:
    from labelveil.common.mechanisms.group_sums import NoisySums
    from labelveil.label_party.events.intention import Intention
    from labelveil.label_party.events.tally import Tally
    from labelveil.label_party.store.entries import Charge
    from labelveil.label_party.store.purchase import Order, Outlook, Rehearsal
    from labelveil.label_party.store.release_store import Store


def label_facts(tally: Tally, missing: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    """Say what was found of each label, given the value of a missing one by its name."""
    for (name, given), of_label in zip(missing.items(), tally.labels, strict=True):
        of = f" of {name}" if len(missing) > 1 else ""
        yield f"  without a label{of}", f"{of_label.unlabelled:,} (given {given:g})"
        yield f"  outside the domain{of}", f"{of_label.outside:,} (clipped)"


def aligned(facts: Sequence[tuple[str, object]]) -> Iterator[str]:
    """Yield plain lines: a digest that a narrow terminal cuts off cannot be compared."""
    width = max(21, *(len(name) for name, _ in facts))
    for name, value in facts:
        yield f"{name:<{width}} {value}"


class PreflightOptions(Section):
    dry_run: bool = setting(
        False,
        "Print what would be read and spent, and warnings; charge, draw and write nothing. Warnings"
        " make it fail, unless --yes accepts them.",
        flag="--dry-run",
    )
    yes: bool = setting(
        False,
        "Go on after warnings without a question, as without a terminal: not to release tells the"
        " partner something of the labels.",
        flag="--yes",
    )


@dataclass(frozen=True, eq=False)
class Preflight:
    """What a command does before it buys, and what it says however it ends after that.

    ``LabelveilError``, ^C and SIGTERM say on standard error what was charged and not shown yet.
    """

    config: LabelPartyConfig
    wanted: PreflightOptions
    shown: OutputOptions
    outputs: Sequence[Path] = ()  # files that it would write beside the store; checked already
    # what a dry run has planned so far, as several epochs add up
    foreseen: list[Order] = field(default_factory=list)
    warned: list[str] = field(default_factory=list)  # what it has warned of so far
    untold: list[Charge] = field(default_factory=list)  # what was charged and not shown yet
    _within: ExitStack = field(default_factory=ExitStack)

    @property
    def _store(self) -> Store:
        from labelveil.label_party.store.release_store import Store

        return Store(self.config.store.directory)

    @cached_property
    def _rehearsal(self) -> Rehearsal:
        """Of everything that a dry run plans."""
        from labelveil.label_party.store.purchase import rehearsing

        return self._within.enter_context(rehearsing(self._store))

    def __enter__(self) -> Self:
        from labelveil.label_party.store.purchase import noting_charges

        self._within.enter_context(noting_charges(self.untold))
        self._within.enter_context(terminated_as_interrupted())
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> bool:
        """Let a dry run end, and fail where somebody should look."""
        from labelveil.label_party.events.intention import DryRunEnded

        try:
            if kind is not None and not issubclass(kind, DryRunEnded):
                return False
            flush_output()
            self.untold.clear()
        finally:
            for charge in self.untold:
                self._tell(charge)
            self._within.close()
        if self.warned and not self.wanted.yes:
            raise ReleaseError(
                f"warnings: {len(self.warned)}; mend what is read, or accept them with --yes;"
                " nothing was spent, and without --dry-run nothing would stop"
            )
        return True

    def _tell(self, charge: Charge) -> None:
        from labelveil.label_party.store.purchase import committed

        name = f"data set {charge.data_set!r}, epoch {charge.epoch!r}: {charge.guarantee}"
        try:
            if committed(self._store, charge):
                say(f"charged all the same, for {charge.purpose} of {name}")
        except LabelveilError:
            say(f"perhaps charged, for {charge.purpose} of {name}; label-party budget shows it")

    def __call__(self, intention: Intention) -> None:
        """Print, and ask where that is called for.

        ``DryRunEnded`` with ``--dry-run``; ``ReleaseError`` if the answer is no.
        """
        from labelveil.label_party.events.intention import DryRunEnded
        from labelveil.label_party.release.plan import too_few_events

        terminal = sys.stdin.isatty() and sys.stderr.isatty()
        if self.shown.quiet and not (terminal or self.wanted.dry_run):
            return
        if intention.plan is not None:
            rows = intention.events.rows
            intention = replace(intention, too_few=too_few_events(self.config, rows))
        warnings = intention.warnings()
        if self.wanted.dry_run:
            self._foresee(intention, warnings)
        for warning in warnings:
            say(f"warning: {warning}")  # if nobody can see it, that may change nothing either
        if self.wanted.dry_run:
            self.warned.extend(warnings)
            raise DryRunEnded
        if warnings and not self.wanted.yes and terminal:
            epoch = intention.purchases[-1].epoch
            if not agreed("Release all the same?"):
                raise ReleaseError(f"epoch {epoch!r}: not released, as answered; nothing was spent")

    def _foresee(self, intention: Intention, warnings: Sequence[str]) -> None:
        """Show what would be read and spent: the epochs of a watch add up, and one session serves
        them all."""
        *sessions, last = intention.purchases
        known = {order.purpose for order in self.foreseen}
        new = (*(order for order in sessions if order.purpose not in known), last)
        intention = replace(intention, purchases=new)
        self.foreseen.extend(new)
        outlook = self._rehearsal.buy(new, intention.events)
        lines = aligned([*self._facts(intention, outlook)])
        self.shown.answer(self._document(intention, outlook, warnings), *lines)

    def _facts(self, intention: Intention, outlook: Outlook) -> Iterator[tuple[str, object]]:
        from labelveil.common.release.limits import MANIFEST_BYTES
        from labelveil.common.release.size import largest_manifest

        bought, events = intention.purchases, intention.events
        data, engine = self.config.at(bought[-1].epoch).data, self.config.engine
        tally = events.tally
        population = data.population_source or "the labels' own keys"
        if data.submitted:
            population = "submitted by the features party"
        yield "data set", f"{data.data_set}, epoch {bought[-1].epoch}"
        yield "labels", f"{data.labels_source}: {tally.label_rows:,} rows"
        yield "population", f"{population}: {tally.rows:,} events"
        yield from label_facts(tally, {label.name: label.missing for label in self.config.labels})
        for label, (grid, moved) in zip(self.config.labels, intention.placed, strict=False):
            of = f" of {label.name}" if len(self.config.labels) > 1 else ""
            yield f"  grid{of}", f"{grid}; {moved}"
            if not moved.fractional and (grid.points % 1).any():
                yield "", 'all are whole numbers: if they always are, say grid = "whole"'
        yield "  labels left out", f"{tally.left_out:,}"
        yield "  keys merged", f"{tally.merged:,}"
        yield "day", "all" if data.date is None else f"{data.epoch} of column {data.date!r}"
        yield "duplicates", data.duplicates
        if self.config.privacy.max_records_per_user is not None:
            yield "  over a user's limit", f"{tally.over_limit:,}"
        if intention.sums is not None:
            yield from _sums_facts(intention.sums)
        if intention.plan is not None:
            most = largest_manifest(self.config.plan_message(tally.rows))
            yield "manifest", f"at most {most:,} bytes, of {MANIFEST_BYTES:,}"
        how = "in memory" if events.in_memory else f"{engine.name}, {engine.workers} workers"
        yield "engine", how
        yield "account", outlook.account
        yield "cap", f"{outlook.limit}{'' if outlook.recorded else ', recorded by this charge'}"
        yield "spent", short(outlook.spent, "nothing")
        for purchase in bought:
            yield "charge", f"{purchase.guarantee} for {purchase.purpose}"
        yield "left afterwards", short(outlook.left)
        for path in self._outputs(intention):
            yield "would write", path

    def _document(
        self, intention: Intention, outlook: Outlook, warnings: Sequence[str]
    ) -> dict[str, Any]:
        bought, left = intention.purchases, outlook.left
        return {
            "data_set": bought[-1].data_set,
            "epoch": bought[-1].epoch,
            "found": intention.events.tally.to_json(),
            "account": outlook.account,
            "total": outlook.limit.to_json(),
            "charges": {order.purpose: order.guarantee.to_json() for order in bought},
            "left": None if left is None else left.to_json(),
            **_sums_document(intention.sums),
            "grids": [
                {"points": len(grid), **asdict(moved), "variance_added": moved.share}
                for grid, moved in intention.placed
            ],
            "would_write": self._outputs(intention),
            "warnings": warnings,
        }

    def _outputs(self, intention: Intention) -> list[Path]:
        return [*(self._store.folder(*order.name) for order in intention.purchases), *self.outputs]


def _sums_document(noisy: NoisySums | None) -> dict[str, Any]:
    if noisy is None:
        return {"sums": 0, "question_bits": 0.0}
    return {"sums": noisy.question.half_widths.size, "question_bits": noisy.question.bits}


def _sums_facts(noisy: NoisySums) -> Iterator[tuple[str, object]]:
    question = noisy.question
    yield "asked", f"sums over {question.half_widths.size:,} groups, and no codes"
    yield "  question", question_words(question.bits)
    yield "  noise", noise_range(noisy.scales.tolist())


def question_words(bits: float) -> str:
    """What a question tells the labels party."""
    return f"what the features party predicts: at most {bits:.1f} bits an event"


def noise_range(scales: Sequence[float]) -> str:
    """Say how much noise sums have."""
    low, high = min(scales), max(scales)
    shown = f"{high:.6g}" if low == high else f"{low:.6g} … {high:.6g}"
    return f"exact discrete Laplace on each sum, of scale {shown} steps"


def agreed(question: str) -> bool:
    """Ask on the terminal; only a clear yes is one."""
    from labelveil.common.signals import stopped_by_signals

    with stopped_by_signals() as stop:  # they end a question, whatever they do to the work around
        print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
        if not stop.until_readable(sys.stdin):
            raise KeyboardInterrupt
        return sys.stdin.readline().strip().lower() in ("y", "yes")
