"""One simulation from the first check to the last number."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from io import StringIO
from pathlib import Path
from types import FrameType
from typing import Any, cast

from rich.console import Console

from common.console import stderr
from common.extras import need
from common.release.event_keys import read_secret
from common.release.table import Release, read_release
from common.security.pilot_certificates import CertificateFiles
from labelveil.children import FEATURE_PROGRAM, LABEL_PROGRAM
from labelveil.simulation.inputs import KEY, LABEL, Inputs, read_inputs
from labelveil.simulation.processes import run_party, serving
from labelveil.simulation.scoring import label_error
from labelveil.simulation.settings import Settings
from labelveil.simulation.stages import Stages
from labelveil.simulation.summary import summary_table
from labelveil.simulation.workspace import CONFIG_FILES, Workspace, furnish

_WIDTH = 110


@dataclass(frozen=True, repr=False)
class Outcome:
    """What a simulation left behind; a notebook shows its figures, and the report on demand.

    Attributes
    ----------
    metrics
        The content of ``metrics.json``.
    report
        The report's page.
    release
        The release as the features party fetched and verified it.
    """

    metrics: dict[str, Any]
    report: Path
    release: Release

    def __repr__(self) -> str:
        return f"{self._shown().export_text().rstrip()}\nreport: {self.report}"

    def _repr_html_(self) -> str:
        table = self._shown().export_html(inline_styles=True, code_format="<pre>{code}</pre>")
        page = escape(self.report.read_text(encoding="utf-8"), quote=True)
        frame = f'<iframe srcdoc="{page}" style="width: 100%; height: 40em; border: 0"></iframe>'
        return f"{table}<details><summary>Report</summary>{frame}</details>"

    def _shown(self) -> Console:
        console = Console(file=StringIO(), record=True, width=_WIDTH)
        console.print(summary_table(self.metrics))
        return console


def run_simulation(settings: Settings, reference: Callable[[], Path] | None = None) -> Outcome:
    """Run both parties as separate processes with mutual TLS between them, and score the result.

    The features party trains and estimates its error without any true label. Only then is the same
    model scored with the true labels of the events that it was not trained on.

    Parameters
    ----------
    reference
        Trains on true labels in another way than by the same network, and returns the file with
        ``test_mse`` and ``test_mae``.

    Raises
    ------
    LabelveilError
        If something cannot work, or a party fails; its own error line is the message. No process
        is left running.
    """
    need("features", "a simulation")
    with _ended_by_signals():
        return _Simulation(settings, reference).run()


class _Simulation:
    def __init__(self, settings: Settings, reference: Callable[[], Path] | None) -> None:
        self._settings = settings
        self._reference = reference
        self._stages = Stages(stderr, quiet=settings.quiet)
        # Processes start in folders of their own: only an absolute path means the same to all.
        self._workspace = Workspace(settings.out.absolute())

    def run(self) -> Outcome:
        workspace = self._workspace
        with self._stages.stage("prepare", "prepare data, certificates and configurations"):
            inputs = read_inputs(self._settings)
            workspace.claim(overwrite=self._settings.overwrite)
            files = furnish(workspace, inputs, self._settings)
        if not self._settings.submit_population:
            self._release()
        self._exchange()
        with self._stages.stage("verify", "read and verify the release"):
            release = read_release(workspace.release)
        metrics = self._score(release, inputs, files)
        workspace.metrics.write_text(json.dumps(metrics, indent=2) + "\n", encoding="utf-8")
        return Outcome(metrics, self._settings.out / workspace.report.name, release)

    def _release(self) -> None:
        with self._stages.stage("release", "labels party: build the release"):
            self._labels(["release", *_sets(self._settings.label_settings)])

    def _exchange(self) -> None:
        """The whole conversation between the parties: one fetch, then the server can go.

        Where the features party names the events, its list comes first, and the release is built
        beside the server that is to hand it out.
        """
        workspace = self._workspace
        serve = [
            "serve",
            "--config",
            CONFIG_FILES["label_party"],
            *_sets(self._settings.label_settings),
            "--port-file",
            str(workspace.port_file),
        ]
        server = serving(
            serve, workspace.label_party, workspace.logs / "serve.log", workspace.port_file
        )
        with server as port:
            address = f"127.0.0.1:{port}"
            if self._settings.submit_population:
                text = "features party: submit the population"
                with self._stages.stage("submit", text):
                    self._features(["submit", "--address", address])
                self._release()
            text = "features party: fetch, join, train, predict, evaluate"
            with self._stages.stage("features_party", text):
                self._features(["run", "--address", address])

    def _score(self, release: Release, inputs: Inputs, files: CertificateFiles) -> dict[str, Any]:
        workspace = self._workspace
        # From here on true labels are used: to compare, never to train the model that is scored.
        truth = ["--true-labels", str(workspace.truth_labels), "--true-key", KEY]
        if len(self._settings.label) == 1:
            truth += ["--true-label", LABEL]
        unscored = _read(workspace.feature_party / "metrics.json")
        beside, what = list[str](), "score with true labels, write the report"
        if self._settings.nonprivate and self._reference:
            with self._stages.stage("nonprivate", "train on true labels, to compare"):
                found = self._reference().absolute()  # parties work elsewhere
            beside = ["--nonprivate-metrics", str(found)]
        elif self._settings.nonprivate:
            beside, what = ["--nonprivate", "../nonprivate"], f"train on true labels, too; {what}"
        with self._stages.stage("score", what):
            self._features(["evaluate", *truth, *beside])
            secret, several = read_secret(files.join_secret), len(self._settings.label) > 1
            noise = None if several else label_error(release, inputs.truth, secret)
        scored = _read(workspace.feature_party / "metrics.json")
        parts = {f"features_party.{name}": s for name, s in unscored.pop("timings", {}).items()}
        timings = {**self._stages.seconds, **parts}
        return {
            **scored,
            **({} if noise is None else {"label_mse": noise}),
            "seed": self._settings.seed,
            "timings": {name: round(seconds, 3) for name, seconds in timings.items()},
        }

    def _labels(self, command: Sequence[str]) -> None:
        self._run(LABEL_PROGRAM, command)

    def _features(self, command: Sequence[str]) -> None:
        self._run(FEATURE_PROGRAM, [*command, *_sets(self._settings.feature_settings)])

    def _run(self, program: str, command: Sequence[str]) -> None:
        party, _, _ = program.partition(".")
        run_party(
            program,
            [*command, "--config", CONFIG_FILES[party]],
            self._workspace.root / party,
            self._workspace.logs / f"{party}-{command[0]}.log",
        )


def _sets(settings: Sequence[str]) -> list[str]:
    return [part for setting in settings for part in ("--set", setting)]


def _read(path: Path) -> dict[str, Any]:
    return cast(dict[str, Any], json.loads(path.read_text(encoding="utf-8")))


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Turn SIGTERM into an exception, so that the parties' processes are ended with this one."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    try:
        before = signal.signal(signal.SIGTERM, end)
    except ValueError:  # Only a main thread may do this; another leaves it to its caller.
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
