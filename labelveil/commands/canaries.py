"""`labelveil audit canaries`: plant labels of your own with a partner, score what comes back."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from common.config import Section, setting
from common.config.answers import Json
from common.config.options import with_options
from common.errors import ConfigError
from labelveil.audit.settings import Connection, Planting
from labelveil.commands.verdicts import VerdictOptions, announce, conduct

canaries = typer.Typer(
    help="Audit a partner by labels of your own: plant them, then score what comes back.",
    epilog="Examples: labelveil audit canaries plant --lower 0 --upper 400; labelveil audit"
    " canaries score canaries --release release --secret join.key",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)


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
    from labelveil.audit.planted.plant import PARTNER
    from labelveil.audit.planted.plant import plant as make

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
    from common.release.folder import MANIFEST_FILE
    from labelveil.audit.certificate.run import read_evidence
    from labelveil.audit.party.endpoint import fetch_release
    from labelveil.audit.planted.plant import read_planted
    from labelveil.audit.planted.score import STEPS
    from labelveil.audit.planted.score import score as score_release

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
    conduct("canaries", STEPS, shown, scored)
