"""`labelveil audit`: verdicts with evidence, for somebody who trusts neither party."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from common.config import Section, setting
from common.config.options import with_options
from common.errors import ConfigError
from labelveil.audit.settings import CanarySettings, Connection, RunFiles
from labelveil.commands.canaries import canaries as planted
from labelveil.commands.verdicts import VerdictOptions, announce, conduct

audit = typer.Typer(
    help="Check the privacy claim from outside: certificate, attacks, verdicts.",
    epilog="Examples: labelveil audit certificate out/demo/run/release; labelveil audit mechanism"
    " rr-on-bins --epsilon 1; labelveil audit party --address HOST:PORT --data-set NAME",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

audit.add_typer(planted, name="canaries")


@audit.command(
    epilog="Examples: labelveil audit certificate release; labelveil audit certificate"
    " out/run/release --public-key labels-party.pub.pem --out out/audit; labelveil audit"
    " certificate releases"
)
@with_options()
def certificate(
    shown: VerdictOptions,
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
) -> None:
    """Prove what a release proves by itself: exact ε, channel, digests, every field."""
    from common.release.folder import release_folders

    folders = release_folders(release)
    announce(
        f"about {1 + max(len(folders), 1)} s of CPU, and 1 s for a million rows; nothing leaves"
        " this machine",
        shown,
    )
    if folders:
        from labelveil.audit.certificate.epochs import epochs_certificate

        audited = partial(epochs_certificate, folders, public_key=public_key)
        conduct("certificates", len(folders), shown, audited)
        return
    from labelveil.audit.certificate.run import certify

    conduct("certificate", 13, shown, partial(certify, release, public_key=public_key))


class AttackOptions(Section):
    """The claim about a mechanism, its labels, and how often it is run."""

    epsilon: float = setting(1.0, "The claim, for one label.")
    lower: float = setting(0.0, "Lowest label.")
    upper: float = setting(10.0, "Highest label.")
    points: int = setting(11, "Grid points between them.", ge=2)
    loss: str = setting("squared", "squared, absolute or poisson.")
    also: list[str] = setting(
        list,
        "Another label of each event, at one of its ends; repeatable. A function then takes an"
        " array of a row an event.",
        metavar="LOWER:UPPER",
    )
    grid_only: bool = setting(
        False, "Labels are those of the grid alone, as with two --points: none between is tried."
    )
    effort: float = setting(1.0, "How many times as much is tried.", ge=0.01, le=1000)


@audit.command(
    epilog="Examples: labelveil audit mechanism rr-on-bins --epsilon 1 --upper 77; labelveil audit"
    " mechanism mypackage.noise:randomize --epsilon 0.5 --lower 0 --upper 1 --points 2"
)
@with_options()
def mechanism(
    shown: VerdictOptions,
    subject: Annotated[
        str,
        typer.Argument(
            help="A randomizer's name, or module:function from an array of labels to an array of"
            " outputs.",
            metavar="SUBJECT",
        ),
    ],
    options: AttackOptions,
) -> None:
    """Attack a randomizer, or any Python callable, as a black box, and exactly where possible."""
    from common.randomizers.base import check_epsilon
    from common.randomizers.grid import Grid
    from labelveil.audit.mechanism.run import PROBES, audit_mechanism, mechanism_cost
    from labelveil.audit.mechanism.subject import CallableSubject, NamedSubject, Subject
    from labelveil.audit.mechanism.trial import Sizes, Trial

    epsilon, also = options.epsilon, options.also
    check_epsilon(epsilon, "--epsilon")
    sizes = Sizes().times(options.effort)
    labels = Grid.from_count(options.lower, options.upper, options.points).points
    chosen: Subject
    if ":" not in subject:
        if also:
            raise ConfigError(
                f"--also is for module:function: {subject} randomizes one label; a release of"
                " several is for `labelveil audit certificate`, and its software for `party"
                " --labels`"
            )
        chosen = NamedSubject(subject, np.asarray(labels), epsilon, options.loss)
    elif also:
        chosen = CallableSubject.of_several(subject, [labels.tolist(), *map(_ends, also)], epsilon)
    else:
        chosen = CallableSubject(subject, np.asarray(labels), epsilon)
    trial = Trial(chosen, sizes, options.grid_only)
    announce(f"about {mechanism_cost(trial):.0f} s of CPU", shown)
    steps = len(PROBES.fitting(trial))
    conduct("mechanism", steps, shown, partial(audit_mechanism, trial))


def _ends(text: str) -> tuple[float, float]:
    """Read ``LOWER:UPPER``."""

    try:
        lower, upper = map(float, text.split(":"))
    except ValueError:
        lower = upper = math.nan
    if not -math.inf < lower < upper < math.inf:
        raise ConfigError(f"--also {text!r:.100} must be LOWER:UPPER, as in 0:1")
    return lower, upper


@audit.command(
    epilog="Examples: labelveil audit party (canaries alone); labelveil audit party --address"
    " labels.example.com:50051 --data-set conversions --ca ca.pem --certificate auditor.pem"
    " --private-key auditor.key"
)
@with_options()
def party(
    shown: VerdictOptions,
    options: Connection,
    made: CanarySettings,
    canaries: Annotated[
        bool | None,
        typer.Option(
            help="Start labels parties here, on data sets made for the audit; by default without"
            " --address."
        ),
    ] = None,
) -> None:
    """Question a labels party, and run its software on two data sets that differ in one event."""
    from common.randomizers.base import check_epsilon
    from labelveil.audit.party.run import (
        CANARY_STEPS,
        RUNNING_COST,
        RUNNING_STEPS,
        audit_party,
        canary_cost,
    )

    check_epsilon(made.epsilon, "--epsilon")
    if made.rows < 1000:
        raise ConfigError(f"--rows {made.rows} must be at least 1000: fewer canaries show nothing")
    if made.labels > 1 and made.randomizer != "auto":
        raise ConfigError(
            f"--randomizer {made.randomizer} is of one label; leave it or --labels out"
        )
    connection = None if options.address is None else options
    if canaries is None:
        canaries = connection is None
    if connection is None and not canaries:
        raise ConfigError("--no-canaries without --address leaves nothing to audit; name one")
    steps, costs = 0, []
    if connection is not None:
        steps += RUNNING_STEPS
        costs.append(RUNNING_COST)
    if canaries:
        steps += CANARY_STEPS
        if not shown.quiet:  # the cost is measured
            seconds = canary_cost(made)
            costs.append(f"about {seconds:.0f} s of CPU, for labels parties on this machine")
    announce("; ".join(costs), shown)
    settings = made if canaries else None
    conduct("party", steps, shown, partial(audit_party, connection, settings))


@audit.command(
    epilog="Examples: labelveil audit inference out/demo/run; labelveil audit inference run"
    " --release other/release --canaries planted.parquet"
)
@with_options()
def inference(
    shown: VerdictOptions,
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="Folder that `labelveil simulate` left behind.")
    ],
    paths: RunFiles,
) -> None:
    """Infer labels from the message, and from the model that was trained on it."""
    from labelveil.audit.inference.run import STEPS, audit_inference, inference_cost

    files = paths.of(run)
    announce(f"about {inference_cost(files):.0f} s of CPU; nothing leaves this machine", shown)
    conduct("inference", STEPS, shown, partial(audit_inference, files))
