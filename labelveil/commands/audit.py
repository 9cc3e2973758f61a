"""`labelveil audit`: verdicts with evidence, for somebody who trusts neither party."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from labelveil.audit.settings import CanarySettings, Connection, Planting, RunFiles
from labelveil.commands.verdicts import VerdictOptions, announce, conduct
from labelveil.common.config import Section, setting
from labelveil.common.config.answers import Json
from labelveil.common.config.options import with_options
from labelveil.common.errors import ConfigError
from labelveil.common.files import file_errors

audit = typer.Typer(
    epilog="Examples: labelveil audit certificate out/demo/run/release; labelveil audit mechanism"
    " rr-on-bins --epsilon 1; labelveil audit party --address HOST:PORT --data-set NAME",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

canaries = typer.Typer(
    help="Audit a partner by labels of your own: plant them, then score what comes back.",
    epilog="Examples: labelveil audit canaries plant --lower 0 --upper 400; labelveil audit"
    " canaries score canaries --release release --secret join.key",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

audit.add_typer(canaries, name="canaries")


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
    from labelveil.common.release.folder import release_folders

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
    from labelveil.audit.certificate.run import STEPS, certify

    conduct("certificate", STEPS, shown, partial(certify, release, public_key=public_key))


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
    sums: bool = setting(
        False,
        "SUBJECT is a function that answers a question about groups, as group-sums does: of labels,"
        " the question, ε and entropy.",
    )
    grid_only: bool = setting(
        False, "Labels are those of the grid alone, as with two --points: none between is tried."
    )
    effort: float = setting(1.0, "How many times as much is tried.", ge=0.01, le=1000)


@audit.command(
    epilog="Examples: labelveil audit mechanism rr-on-bins --epsilon 1 --upper 77; labelveil audit"
    " mechanism mypackage.noise:randomize --epsilon 0.5 --lower 0 --upper 1 --points 2; labelveil"
    " audit mechanism group-sums --epsilon 0.1"
)
@with_options()
def mechanism(
    shown: VerdictOptions,
    subject: Annotated[
        str,
        typer.Argument(
            help="A randomizer's name, group-sums, or module:function from an array of labels to an"
            " array of outputs.",
            metavar="SUBJECT",
        ),
    ],
    options: AttackOptions,
) -> None:
    """Attack a randomizer, sums over groups, or any Python callable: exactly where possible."""
    from labelveil.audit.mechanism.run import PROBES, audit_mechanism, mechanism_cost
    from labelveil.audit.mechanism.subject import (
        GROUP_SUMS,
        CallableSubject,
        NamedSubject,
        Subject,
        SumsSubject,
    )
    from labelveil.audit.mechanism.trial import Sizes, Trial
    from labelveil.common.randomizers.base import check_epsilon
    from labelveil.common.randomizers.grid import Grid

    epsilon, also = options.epsilon, options.also
    check_epsilon(epsilon, "--epsilon")
    sizes = Sizes().times(options.effort)
    labels = Grid.from_count(options.lower, options.upper, options.points).points
    chosen: Subject
    if subject == GROUP_SUMS or options.sums:
        if also:
            raise ConfigError("--also is for outputs of an event: a sum is of one label")
        chosen = SumsSubject(subject, np.asarray(labels), epsilon)
    elif ":" not in subject:
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
    from labelveil.audit.canaries.party import (
        CANARY_STEPS,
        RUNNING_COST,
        RUNNING_STEPS,
        audit_party,
        canary_cost,
    )
    from labelveil.common.randomizers.base import check_epsilon

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
    from labelveil.audit.canaries.inference import STEPS, audit_inference, inference_cost

    files = paths.in_folder(run)
    announce(f"about {inference_cost(files):.0f} s of CPU; nothing leaves this machine", shown)
    conduct("inference", STEPS, shown, partial(audit_inference, files))


class PlantedFolder(Section):
    """Where canaries are."""

    folder: Path = setting(Path("canaries"), "Where canaries and their secrets lie.")


@canaries.command(
    epilog="Examples: labelveil audit canaries plant --lower 0 --upper 400; labelveil audit"
    " canaries plant --events 100000 --values 5 --lower 0 --upper 1 --key click_id --label amount"
    " --folder out/canaries"
)
@with_options()
def plant(planting: Planting, place: PlantedFolder, shown: Json) -> None:
    """Make a data set of secret labels, to be given to a labels party as any other.

    Started again it changes nothing: what was given away stays what is scored.
    """
    from labelveil.audit.canaries.planting import PARTNER
    from labelveil.audit.canaries.planting import plant as make

    events, folder = planting.events, place.folder
    made = make(folder, planting)
    partner = folder / PARTNER
    domains = ", ".join(f"{name} from {low:g} to {high:g}" for name, low, high in planting.columns)
    shown.answer(
        {"planted": made, "events": events, "folder": folder, "partner": partner},
        f"{events:,} canaries {'are planted' if made else 'were planted before'} in {folder}\n"
        f"1. give {partner}/{planting.name}.parquet and"
        f" {partner}/{planting.name}-population.parquet to the labels party, as a data set of its"
        f" own with {domains}"
        f" and duplicates {planting.duplicates}; keep all else\n"
        f"2. once it serves the release: labelveil audit canaries score {folder} --address"
        " HOST:PORT --data-set NAME --secret join.key",
    )


class QuestionOptions(Section):
    """A question about sums of canaries."""

    points: int = setting(11, "Points of the label's grid, from bound to bound.", ge=2, le=1001)


@canaries.command(
    epilog="Examples: labelveil audit canaries ask canaries --points 21; feature-party submit"
    " --question canaries/release/question.bin"
)
@with_options()
def ask(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="What `plant` made.")],
    options: QuestionOptions,
    shown: Json,
) -> None:
    """Make a question about groups of canaries, for a labels party that answers with sums.

    Submit it with the canaries' population as features; `score` knows the answer.
    """
    from labelveil.audit.canaries.planting import read_planted
    from labelveil.audit.canaries.sums import ask as ask_groups
    from labelveil.common.release.folder import QUESTION_FILE
    from labelveil.common.release.question import write_question

    question = ask_groups(read_planted(folder), options.points)
    path = folder / "release" / QUESTION_FILE
    if path.exists():
        raise ConfigError(f"{path} is there already: what was submitted is what is scored")
    with file_errors(ConfigError, f"{path} cannot be written"):
        path.parent.mkdir(exist_ok=True)
    write_question(question, path)
    shown.answer(
        {"question": path, "groups": question.half_widths.size},
        f"{question.half_widths.size:,} groups are asked for in {path}; submit it with the"
        f" population: feature-party submit --question {path}",
    )


class ScoreOptions(Section):
    """A release that canaries are in, and what it claims."""

    secret: Path = setting(Path("certificates/join.key"), "Secret that both sides hash keys with.")
    release: Path | None = setting(None, "A release, fetched or stored; FOLDER/release.")
    epsilon: float | None = setting(None, "The claim for one label; the manifest's by default.")
    public_key: Path | None = setting(None, "The labels party's Ed25519 public key, PEM.")
    before: list[Path] = setting(
        list, "Another release of the same canaries, to compare noise with; repeatable."
    )


@canaries.command(
    epilog="Examples: labelveil audit canaries score canaries --release label_store/releases/"
    "canaries/1 --secret join.key; labelveil audit canaries score canaries --address"
    " labels.example.com:50051 --data-set canaries --secret join.key"
)
@with_options()
def score(
    shown: VerdictOptions,
    party: Connection,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="What `plant` made.")],
    options: ScoreOptions,
) -> None:
    """Bound ε from what a release says about canaries, which nobody but the auditor knows.

    What --address gives is kept in FOLDER/release, and is not fetched again.
    """
    from labelveil.audit.canaries.endpoint import fetch_release
    from labelveil.audit.canaries.planting import read_planted
    from labelveil.audit.canaries.score import score as score_release
    from labelveil.audit.canaries.score import steps
    from labelveil.audit.certificate.evidence import read_evidence
    from labelveil.common.release.folder import MANIFEST_FILE

    planted, fetching = read_planted(folder), party.address is not None
    if options.release is not None and fetching:
        raise ConfigError("--release and --address name two releases; keep one of them")
    fetched = options.release or folder / "release"
    if (fetched / MANIFEST_FILE).is_file():
        fetching = False
    fetch = "1 fetch, " if fetching else ""
    announce(f"{fetch}{planted.secrets.size:,} canaries, a few seconds of CPU", shown)
    if fetching:
        fetch_release(party, fetched)
    evidence = read_evidence(fetched)
    scored = partial(
        score_release,
        planted,
        evidence,
        options.secret,
        epsilon=options.epsilon,
        public_key=options.public_key,
        before=[read_evidence(release) for release in options.before],
    )
    conduct("canaries", steps(evidence), shown, scored)
