"""`labelveil audit`: verdicts with evidence, for somebody who trusts neither party."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.markup import escape
from rich.table import Table

from common.command_line import fail
from common.console import progress, stderr, stdout
from common.program.audit.verdict import Audit, Verdict

audit = typer.Typer(
    help="Check the privacy claim from outside: certificate, attacks, verdicts.",
    epilog="Examples: labelveil audit certificate out/demo/run/release; labelveil audit mechanism"
    " rr-on-bins --epsilon 1; labelveil audit party --address HOST:PORT --data-set NAME",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

Out = Annotated[Path, typer.Option(help="Folder for audit.json and audit.html.")]
Quiet = Annotated[bool, typer.Option(help="No progress, no table.")]
Epsilon = Annotated[float, typer.Option(help="The claim, for one label.")]

_COLOURS = {"pass": "green", "fail": "bold red", "not checkable": "yellow"}


@audit.command(
    epilog="Examples: labelveil audit certificate release; labelveil audit certificate"
    " out/run/release --public-key labels-party.pub.pem --out out/audit; labelveil audit"
    " certificate releases"
)
def certificate(
    release: Annotated[
        Path,
        typer.Argument(
            metavar="RELEASE",
            help="A release as it was fetched, or as a store keeps it; or a folder of many, one an"
            " epoch.",
        ),
    ],
    public_key: Annotated[
        Path | None, typer.Option(help="The labels party's Ed25519 public key, PEM.")
    ] = None,
    out: Out = Path("audit"),
    quiet: Quiet = False,
) -> None:
    """Prove what a manifest and its labels file prove: exact ε, bins, digests, arithmetic."""
    from common.program.audit.certificate.epochs import epoch_folders, epochs_certificate
    from common.program.audit.certificate.run import certify

    folders = epoch_folders(release)
    if folders:
        with _bar("certificates", len(folders), quiet) as advance:
            found = epochs_certificate(folders, public_key=public_key, progress=advance)
        _finish(found, out, quiet)
        return
    with _bar("certificate", 13, quiet) as advance:
        found = certify(release, public_key=public_key, progress=advance)
    _finish(found, out, quiet)


@audit.command(
    epilog="Examples: labelveil audit mechanism rr-on-bins --epsilon 1 --upper 77; labelveil audit"
    " mechanism mypackage.noise:randomize --epsilon 0.5 --lower 0 --upper 1 --points 2"
)
def mechanism(
    subject: Annotated[
        str,
        typer.Argument(
            help="A randomizer's name, or module:function from an array of labels to an array of"
            " outputs.",
            metavar="SUBJECT",
        ),
    ],
    epsilon: Epsilon = 1.0,
    lower: Annotated[float, typer.Option(help="Lowest label.")] = 0.0,
    upper: Annotated[float, typer.Option(help="Highest label.")] = 10.0,
    points: Annotated[int, typer.Option(help="Grid points between them, at least 2.")] = 11,
    loss: Annotated[str, typer.Option(help="squared, absolute or poisson.")] = "squared",
    runs: Annotated[int, typer.Option(help="Runs in each of two worlds.")] = 1_000_000,
    records: Annotated[int, typer.Option(help="Records of the one-run audit.")] = 1_000_000,
    releases: Annotated[int, typer.Option(help="Two-step releases in each world.")] = 500_000,
    out: Out = Path("audit"),
    quiet: Quiet = False,
) -> None:
    """Attack a randomizer, or any Python callable, as a black box, and exactly where possible."""
    from common.errors import ConfigError
    from common.program.audit.mechanism.run import Sizes, audit_mechanism, step_names
    from common.program.audit.mechanism.subject import CallableSubject, NamedSubject
    from common.randomizers.base import check_epsilon
    from common.randomizers.grid import Grid

    check_epsilon(epsilon, "--epsilon")
    for name, size in (("--runs", runs), ("--records", records), ("--releases", releases)):
        if size < 1000:
            raise ConfigError(f"{name} {size} must be at least 1000: fewer bound nothing")
    labels = Grid.from_count(lower, upper, points).points
    chosen = (
        CallableSubject(subject, np.asarray(labels), epsilon)
        if ":" in subject
        else NamedSubject(subject, np.asarray(labels), epsilon, loss)
    )
    sizes = Sizes(runs=runs, records=records, releases=releases)
    with _bar("mechanism", len(step_names(chosen)), quiet) as advance:
        found = audit_mechanism(chosen, sizes, advance)
    _finish(found, out, quiet)


@audit.command(
    epilog="Examples: labelveil audit party (canaries alone); labelveil audit party --address"
    " labels.example.com:50051 --data-set conversions --ca ca.pem --certificate auditor.pem"
    " --private-key auditor.key --no-canaries"
)
def party(
    address: Annotated[
        str | None, typer.Option(help="host:port of a running labels party; default: none.")
    ] = None,
    data_set: Annotated[str, typer.Option(help="Its data set.")] = "labels",
    epoch: Annotated[str, typer.Option(help="Its release; the latest by default.")] = "",
    ca: Annotated[Path, typer.Option(help="Authority of its certificate, PEM.")] = Path(
        "certificates/ca.pem"
    ),
    certificate_file: Annotated[
        Path, typer.Option("--certificate", help="Certificate of a client it admits, PEM.")
    ] = Path("certificates/feature-party.pem"),
    private_key: Annotated[Path, typer.Option(help="Its private key, PEM.")] = Path(
        "certificates/feature-party.key"
    ),
    server_name: Annotated[
        str | None, typer.Option(help="Name in the server's certificate, if not the host's.")
    ] = None,
    canaries: Annotated[
        bool, typer.Option(help="Start labels parties on data sets made for the audit.")
    ] = True,
    rows: Annotated[int, typer.Option(help="Events in the canary data sets.")] = 20_000,
    epsilon: Annotated[float, typer.Option(help="ε of the canary releases.")] = 1.0,
    randomizer: Annotated[str, typer.Option(help="Randomizer of the canary releases.")] = "auto",
    out: Out = Path("audit"),
    quiet: Quiet = False,
) -> None:
    """Question a labels party, and run its software on two data sets that differ in one label."""
    import tempfile

    from common.errors import ConfigError
    from common.program.audit.party.canary_parties import Plan
    from common.program.audit.party.endpoint import Connection
    from common.program.audit.party.run import CANARY_STEPS, RUNNING_STEPS, audit_party
    from common.randomizers.base import check_epsilon

    check_epsilon(epsilon, "--epsilon")
    if rows < 1000:
        raise ConfigError(f"--rows {rows} must be at least 1000: fewer canaries show nothing")
    if address is None and not canaries:
        raise ConfigError("--no-canaries without --address leaves nothing to audit; name one")
    connection = None
    if address is not None:
        connection = Connection(
            address, ca, certificate_file, private_key, data_set, epoch, server_name
        )
    steps = len(RUNNING_STEPS) * (address is not None) + len(CANARY_STEPS) * canaries
    with tempfile.TemporaryDirectory() as folder, _bar("party", steps, quiet) as advance:
        plan = Plan(Path(folder) / "canaries", rows, epsilon, randomizer) if canaries else None
        found = audit_party(connection, plan, advance)
    _finish(found, out, quiet)


@audit.command(
    epilog="Examples: labelveil audit inference out/demo/run; labelveil audit inference run"
    " --release other/release --canaries planted.parquet"
)
def inference(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="Folder that `labelveil simulate` left behind.")
    ],
    release: Annotated[Path | None, typer.Option(help="Release folder; RUN/release.")] = None,
    predictions: Annotated[
        Path | None, typer.Option(help="Parquet with key, prediction; RUN/predictions.parquet.")
    ] = None,
    features: Annotated[Path | None, typer.Option(help="Features with the same key.")] = None,
    truth: Annotated[
        Path | None, typer.Option(help="Parquet with key, label: the labels before any noise.")
    ] = None,
    secret: Annotated[Path | None, typer.Option(help="Secret that keys are hashed with.")] = None,
    canaries: Annotated[
        Path | None,
        typer.Option(
            help="Parquet with key, secret (0: lowest label, 1: highest) of events whose"
            " label was replaced at random before the release."
        ),
    ] = None,
    out: Out = Path("audit"),
    quiet: Quiet = False,
) -> None:
    """Infer labels from the message, and from the model that was trained on it."""
    from dataclasses import replace

    from common.program.audit.inference.run import STEPS, audit_inference
    from common.program.audit.inference.run_folder import RunFiles

    given = {
        "release": release,
        "predictions": predictions,
        "features": features,
        "truth": truth,
        "secret": secret,
    }
    named = {name: path for name, path in given.items() if path is not None}
    files = replace(RunFiles.under(run, canaries), **named)
    with _bar("inference", len(STEPS), quiet) as advance:
        found = audit_inference(files, advance)
    _finish(found, out, quiet)


@contextmanager
def _bar(what: str, steps: int, quiet: bool) -> Iterator[Callable[[str], None]]:
    """Show a progress bar over named checks; yields the function to call with each name."""
    with progress(quiet=quiet) as bar:
        task = bar.add_task(what, total=steps, note="")
        begun = 0

        def advance(name: str) -> None:
            nonlocal begun
            bar.update(task, completed=begun, note=name)
            begun += 1

        yield advance
        bar.update(task, completed=steps, total=steps, note="")


def _finish(found: Audit, out: Path, quiet: bool) -> None:
    """Write both files, show the table, and leave with exit code 1 if a check failed."""
    found.write_json(out / "audit.json")
    page: Path | None = out / "audit.html"
    try:
        from common.program.audit.report import write_report

        write_report(out / "audit.html", found)
    except ModuleNotFoundError as error:
        page = None
        stderr.print(
            f"[yellow]warning:[/] no audit.html: {error.name} is not installed; install"
            " labelveil\\[report]"
        )
    if not quiet:
        stdout.print(_table(found))
        # a path may be longer than the terminal is wide, and must stay one line to be opened
        stdout.print(f"report: {page or out / 'audit.json'}", soft_wrap=True, highlight=False)
    if not found.passed:
        names = ", ".join(check.name for check in found.checks if check.verdict == "fail")
        fail(f"{found.count(Verdict.FAIL)} of {len(found.checks)} checks failed: {names}")


def _table(found: Audit) -> Table:
    table = Table(title=f"Audit of {escape(found.subject)}", title_justify="left")
    table.add_column("verdict")
    table.add_column("check", style="bold")
    table.add_column("ε ≥", justify="right")
    table.add_column("found")
    for check in found.checks:
        verdict = str(check.verdict)
        bound = "" if check.bound is None or check.claimed is None else f"{check.bound:.3f}"
        table.add_row(
            f"[{_COLOURS[verdict]}]{verdict}[/]", escape(check.name), bound, escape(check.found)
        )
    return table
