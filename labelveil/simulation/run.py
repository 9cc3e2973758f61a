"""One simulation from the first check to the last number."""

from __future__ import annotations

import json
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from html import escape
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from rich.box import ROUNDED
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from labelveil.children import FEATURE_PROGRAM, LABEL_PROGRAM
from labelveil.common.arrays import Floats
from labelveil.common.config.answers import json_text
from labelveil.common.console import Terminal, share_text, stderr
from labelveil.common.errors import DataError, not_none
from labelveil.common.extras import need
from labelveil.common.files import write_text
from labelveil.common.mechanisms.group_sums import NO_GROUP, PrivateSums
from labelveil.common.randomizers.grid import Grid
from labelveil.common.release.event_keys import hash_keys, read_secret
from labelveil.common.release.folder import POPULATION_FILE, is_complete
from labelveil.common.release.manifest import manifest_in
from labelveil.common.release.rows import keys_column
from labelveil.common.release.sections import LabelSection
from labelveil.common.release.sums import about, read_sums
from labelveil.common.release.table import Release, read_release
from labelveil.common.security.pilot_certificates import CertificateFiles
from labelveil.common.signals import terminated_as_interrupted
from labelveil.simulation.inputs import KEY, LABEL, Inputs, read_inputs
from labelveil.simulation.processes import Party, run_party, serving
from labelveil.simulation.settings import AUTO, GROUPS, Settings
from labelveil.simulation.workspace import Workspace, config_file, furnish

_WIDTH = 110
_POLL_SECONDS = 0.1
_SCORES = "scores.json"


@dataclass(frozen=True, repr=False, eq=False)
class Outcome:
    """What a simulation left behind; a notebook shows its figures, and the report on demand."""

    metrics: dict[str, Any]  # as in metrics.json
    report: Path
    # the last one, as the features party fetched and verified it; none where sums were asked for
    release: Release | None
    sums: tuple[PrivateSums, ...] = ()  # of each round, about the features' rows

    def __repr__(self) -> str:
        return f"{self._shown().export_text().rstrip()}\nreport: {self.report}"

    def _repr_html_(self) -> str:
        table = self._shown().export_html(inline_styles=True, code_format="<pre>{code}</pre>")
        page = escape(self.report.read_text(encoding="utf-8"), quote=True)
        frame = f'<iframe srcdoc="{page}" style="width: 100%; height: 40em; border: 0"></iframe>'
        return f"{table}<details><summary>Report</summary>{frame}</details>"

    def _shown(self) -> Terminal:
        console = Terminal(file=StringIO(), record=True, width=_WIDTH)
        console.print(summary_table(self.metrics))
        return console


def run_simulation(settings: Settings, reference: Callable[[], Path] | None = None) -> Outcome:
    """Run both parties as separate processes with mutual TLS between them, and score the result.

    The features party trains without any true label. Only then is its error estimated, and the same
    model scored with the true labels of the events that it was not trained on. ``reference`` trains
    on true labels in another way than by boosted trees, and returns the file with ``test_mse``
    and ``test_mae``. ``LabelveilError`` if something cannot work, or a party fails; its own error
    line is the message. No process is left running.
    """
    need("features", "a simulation")
    with terminated_as_interrupted():  # the parties' processes end with this one
        return _Simulation(settings, reference).run()


class _Simulation:
    def __init__(self, settings: Settings, reference: Callable[[], Path] | None) -> None:
        self._settings = settings
        self._reference = reference
        self._seconds: dict[str, float] = {}
        # Processes start in folders of their own: only an absolute path means the same to all.
        self._workspace = Workspace(settings.out.absolute())
        self._scorer: Party | None = None  # what trains on true labels beside the run, to score it
        self._parties = ExitStack()

    def run(self) -> Outcome:
        """Everything; no process outlives it."""
        with self._parties:
            return self._run_all()

    def _run_all(self) -> Outcome:
        workspace, settings = self._workspace, self._settings
        with self._stage("prepare", "prepare data, certificates and configurations"):
            inputs = read_inputs(settings)
            if AUTO in (settings.rounds, settings.ask):
                self._settings = settings.decided(
                    inputs.features.height,
                    binary=any(map(inputs.binary, settings.label_columns)),
                    others=inputs.others,
                )
                if self._settings.submitted != settings.submitted:
                    inputs = read_inputs(self._settings)
                settings = self._settings
            settings.check_kept(inputs.features.height)
            workspace.claim(overwrite=settings.overwrite)
            files = furnish(workspace, inputs, settings)
        self._exchange()
        folders, of_sums = workspace.releases(len(settings.shares)), settings.ask == GROUPS
        release, sums = None, tuple[PrivateSums, ...]()
        with self._stage("verify", "read and verify the release"):
            if of_sums:
                sums = tuple(_read_asked(folder, inputs, files) for folder in folders)
                labels = manifest_in(folders[-1]).labels
            else:
                release = read_release(folders[-1])
                labels = release.manifest.labels
        metrics = self._score([] if of_sums else folders, inputs, files)
        several = len(settings.label_columns) > 1
        for label, figures in zip(labels, metrics.get("labels", [metrics]), strict=True):
            truth = inputs.truth[label.name if several else LABEL].to_numpy()
            figures |= placed(label, truth)
        write_text(workspace.metrics, json_text(metrics) + "\n")
        return Outcome(metrics, settings.out / workspace.report.name, release, sums)

    @contextmanager
    def _stage(self, name: str, text: str) -> Iterator[None]:
        """Time a stage: on a terminal with a spinner, and a line when it is over."""
        start = time.perf_counter()
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            TimeElapsedColumn(),
        )
        hidden = self._settings.quiet or not stderr.is_terminal
        with Progress(*columns, console=stderr, transient=True, disable=hidden) as progress:
            progress.add_task(text, total=None)
            yield
        self._seconds[name] = time.perf_counter() - start
        if not self._settings.quiet:
            took = f"[dim]{self._seconds[name]:.1f} s[/dim]"
            stderr.print(f"[green]✓[/green] {text}  {took}", markup=True, highlight=False)

    def _exchange(self) -> None:
        """The release, and the whole conversation between the parties: then the server can go.

        The release is built beside the server that is to hand it out, while the features party
        loads what it needs and waits. Where that party names the events, its list comes first.
        """
        workspace = self._workspace
        serve = ["serve", "--config", config_file("label_party")]
        serve += _sets(self._settings.label_settings)
        serve += ["--port-file", str(workspace.port_file)]
        log = workspace.logs / "serve.log"
        with serving(serve, workspace.label_party, log, workspace.port_file) as port:
            address = f"127.0.0.1:{port}"
            if self._settings.shares:
                text = "features party: submit, fetch, train, ask, and again; predict"
                # the labels party releases every round as soon as it is submitted
                watch = ["watch", "--config", config_file("label_party"), "--quiet"]
                watch += _sets(self._settings.label_settings)
                log = workspace.logs / "watch.log"
                with (
                    self._stage("features_party", text),
                    Party(LABEL_PROGRAM, watch, workspace.label_party, log),
                    self._running(address) as run,
                ):
                    self._learn(run)
                return
            if self._settings.submit_population:
                with self._stage("submit", "features party: submit the population"):
                    self._run(FEATURE_PROGRAM, "submit", "--address", address)
                self._release()  # until it is built, nothing can be submitted again
            with self._running(address) as run:
                if not self._settings.submit_population:
                    self._release()
                with self._stage("features_party", "features party: fetch, join, train, predict"):
                    self._learn(run)

    def _release(self) -> None:
        with self._stage("release", "labels party: build the release"):
            self._run(LABEL_PROGRAM, "release")

    def _running(self, address: str) -> Party:
        """The features party's run."""
        return Party(
            *self._invocation(FEATURE_PROGRAM, "run", "--no-evaluate", "--address", address)
        )

    def _learn(self, run: Party) -> None:
        """Wait for the features party's run; who will score it begins beside it, when it can.

        Networks learn from true labels there, to compare, and need all releases. It waits for the
        model to be there before it reads it: nothing of the run sees a true label. In rounds it
        waits for the run's end, which asks how good the model is.
        """
        shares, workspace = self._settings.shares, self._workspace
        releases = workspace.releases(len(shares))
        while not run.ended_within(_POLL_SECONDS):
            if self._scorer is None and not self._given and is_complete(releases[-1]):
                self._scorer = self._scoring()
            if self._scorer is not None and not shares and workspace.trained:
                self._scorer.go_on()
        if run.returncode:
            raise run.failure()

    @property
    def _given(self) -> bool:
        """Whether the model to compare with is trained in another way, once the run is over."""
        return self._settings.nonprivate and self._reference is not None

    def _scoring(self, *compared: str) -> Party:
        """What scores the run's model, once it is told that the run is over."""
        if self._settings.nonprivate and not compared:
            compared = "--nonprivate", "../nonprivate"
        options = ["--wait", "--set", "join.directory=../nonprivate/joined"]
        options += ["--metrics", _SCORES]  # the run may still write its own
        invocation = self._invocation(
            FEATURE_PROGRAM, "evaluate", *options, *self._truth, *compared
        )
        return self._parties.enter_context(Party(*invocation, waits=True))

    @property
    def _truth(self) -> list[str]:
        """Where the true labels are."""
        truth = ["--true-labels", str(self._workspace.truth_labels), "--true-key", KEY]
        return truth + ([] if len(self._settings.label) > 1 else ["--true-label", LABEL])

    def _score(
        self, releases: Sequence[Path], inputs: Inputs, files: CertificateFiles
    ) -> dict[str, Any]:
        """Score the model with true labels; of releases of codes the labels that they sent, too."""
        # From here on true labels are used: to compare, never to train the model that is scored.
        several, figures = len(self._settings.label) > 1, self._workspace.feature_party
        unscored = json.loads((figures / "metrics.json").read_text("utf-8"))
        text = "evaluate, score with true labels, write the report"
        if self._given:
            with self._stage("nonprivate", "train on true labels, to compare"):
                reference = not_none(self._reference)().absolute()  # parties work elsewhere
            self._scorer = self._scoring("--nonprivate-metrics", str(reference))
        elif self._settings.nonprivate:
            text = f"train on true labels, too; {text}"
        with self._stage("score", text), self._scorer or self._scoring() as scorer:
            scorer.go_on()
            if scorer.wait():
                raise scorer.failure()
            shutil.rmtree(self._workspace.nonprivate / "joined", ignore_errors=True)
            (figures / _SCORES).replace(figures / "metrics.json")
            metrics = json.loads((figures / "metrics.json").read_text("utf-8"))
            if releases and not several:
                secret = read_secret(files.join_secret)
                metrics["label_mse"] = label_error(releases, inputs.truth, secret)
        parts = {name: metrics["timings"][name] for name in ("evaluate", "report")}
        parts = {**unscored["timings"], **parts}
        timings = {**self._seconds, **{f"features_party.{name}": s for name, s in parts.items()}}
        return {
            **metrics,
            **self._settings.decision_facts,
            "seed": self._settings.seed,
            "timings": {name: round(seconds, 3) for name, seconds in timings.items()},
        }

    def _run(self, program: str, command: str, *options: str) -> None:
        run_party(*self._invocation(program, command, *options))

    def _invocation(
        self, program: str, command: str, *options: str
    ) -> tuple[str, list[str], Path, Path]:
        """What :class:`Party` takes; options come last, above what was set."""
        party = program.split(".")[1]
        settings = self._settings
        sets = settings.label_settings if program == LABEL_PROGRAM else settings.feature_settings
        arguments = [command, *_sets(sets), *options, "--config", config_file(party)]
        log = self._workspace.logs / f"{party}-{command}.log"
        return program, arguments, self._workspace.root / party, log


def _sets(settings: Sequence[str]) -> list[str]:
    return [part for setting in settings for part in ("--set", setting)]


def label_error(releases: Sequence[Path], truth: pl.DataFrame, secret: bytes) -> float:
    """Mean squared difference between the values sent and the true labels, over all releases.

    ``truth`` is that of :class:`Inputs`; ``secret`` is what both parties hash their keys under.
    """
    known = pl.DataFrame({"key": keys_column(hash_keys(truth[KEY], secret)), "true": truth[LABEL]})
    sent = pl.concat(map(_sent, releases))
    both = sent.join(known, on="key", how="inner", validate="1:1")
    unknown = sent.height - both.height
    if unknown:
        raise DataError(
            f"{unknown:,} rows of the release are of unknown events; labels and population must be"
            " the files that the release was made from"
        )
    return float(np.mean((both["label"] - both["true"]).to_numpy() ** 2))


def placed(label: LabelSection, truth: Floats) -> dict[str, Any]:
    """What placing (n,) true labels on their public grid does to them, in numbers and in words."""
    grid = Grid.from_edges(label.grid)
    moved = grid.rounding_effect(truth)
    return {
        "points": len(grid),
        "labels_between": moved.between,
        "variance_added": moved.share,
        "grid": f"{grid}; {moved}",
    }


def _read_asked(folder: Path, inputs: Inputs, files: CertificateFiles) -> PrivateSums:
    """Sums, about those rows of the features that are in a group."""
    answer = read_sums(folder, inputs.features[inputs.key], files.join_secret)
    return about(answer, np.flatnonzero(answer.question.groups != NO_GROUP))


def _sent(folder: Path) -> pl.DataFrame:
    """What a release sent of each event, with its key, which was submitted if it has none."""
    labels = read_release(folder).labels.select("key", "label")
    submitted = folder / POPULATION_FILE
    if not submitted.is_file():
        return labels
    return labels.with_columns(keys_column(submitted.read_bytes()))


def summary_table(metrics: Mapping[str, Any]) -> Table:
    """Lay the main numbers of ``metrics.json`` out for reading."""
    table = Table(show_header=False, box=ROUNDED, expand=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim")
    table.add_row("ε", f"{metrics['epsilon']:g}", _spent(metrics))
    if bits := metrics.get("question_bits"):
        note = "an event, at most: what questions told the labels party of what is predicted"
        table.add_row("asked", f"{bits:.1f} bits", note)
    table.add_row("events", f"{metrics['rows']:,}", f"{metrics['holdout_rows']:,} kept for scoring")
    for label in metrics.get("labels", [metrics]):
        if "name" in label:
            table.add_section()
            table.add_row(str(label["name"]), "", "")
        _add_label(table, label)
    return table


def _spent(metrics: Mapping[str, Any]) -> str:
    """What one label's ε goes to: an event is in one release, and these may divide it otherwise."""

    def words(of: Mapping[str, Any]) -> str:
        prior, labels = of["epsilon_prior"], of["epsilon_labels"]
        return f"{prior:.3g} for the prior, {labels:.3g} for labels" if prior else "all for labels"

    releases = Counter(map(words, metrics.get("spent", [])))
    if len(releases) < 2:
        return words(metrics)
    return "\n".join(
        f"{of} in {count} of {releases.total()} releases" for of, count in releases.items()
    )


def _add_label(table: Table, metrics: Mapping[str, Any]) -> None:
    if rounds := metrics.get("rounds"):
        groups = [f"{asked['groups']:,}" for asked in rounds]
        noted = f"of {', '.join(groups)} groups in {len(rounds)} rounds" if rounds[1:] else "groups"
        table.add_row("sums", f"{sum(asked['groups'] for asked in rounds):,}", noted)
    else:
        table.add_row("randomizer", f"{metrics['outputs']} values", str(metrics["randomizer"]))
    table.add_row("grid", f"{metrics['points']:,} points", str(metrics["grid"]).partition(", ")[2])
    if not rounds:
        table.add_row("model", str(metrics["objective"]), str(metrics["head"] or ""))
    table.add_section()
    for name, key, note in (
        ("values sent", "label_mse", "the noise in the labels: mean squared error"),
        ("constant", "constant_mse", "always predicting the mean"),
        ("this model", "test_mse", f"on the events kept{_explained(metrics, 'test_mse')}"),
        ("RR-on-bins", "rr_on_bins_mse", f"labels as sent{_explained(metrics, 'rr_on_bins_mse')}"),
        ("true labels", "nonprivate_mse", f"no privacy{_explained(metrics, 'nonprivate_mse')}"),
    ):
        if metrics.get(key) is not None:
            table.add_row(name, number(metrics[key]), note)
    if metrics.get("verdict") is not None:
        table.add_section()
        table.add_row("verdict", str(metrics["verdict"]), _verdict(metrics))


def _explained(metrics: Mapping[str, Any], key: str) -> str:
    """What share of the constant's error is gone."""
    if not metrics.get(key) or not metrics.get("constant_mse"):
        return ""
    return f"; explains {1 - metrics[key] / metrics['constant_mse']:z.0%} of the variance"


def _verdict(metrics: Mapping[str, Any]) -> str:
    known = metrics["verdict"] != "cannot tell"
    text = "than a constant" if known else "whether it beats a constant"
    text += _of_variance(metrics)
    if not known and metrics.get("associated"):
        p = metrics["association_p_value"]
        text += f"\nthat features predict the label is seen (p = {p:.1g})"
    if clipped := metrics.get("clipped"):
        text += f"\nof labels clipped at {number(clipped['bound'])}, {clipped['verdict']}"
        text += _of_variance(clipped)
    if "rounds" not in metrics and metrics.get("told_by") == "sums":
        return f"{text}\ntold from two sums over events that no code was sent of"
    told = "sums" if "rounds" in metrics else "privatized labels"
    return f"{text}\nall told from {told} alone"


def _of_variance(metrics: Mapping[str, Any]) -> str:
    """The interval that decides, where it says anything."""
    ends = {"low": 0.0, "high": 1.0}  # where an end is endless, and nothing stands in JSON
    for end in ends:
        if (found := metrics[f"estimated_r2_{end}"]) is not None:
            ends[end] = found
    low, high = (share_text(end, ".0%") for end in ends.values())
    return "" if (low, high) == ("0%", "100%") else f": {low} to {high} of the variance (95%)"


def number(value: float) -> str:
    """Four significant digits, thousands separated."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
