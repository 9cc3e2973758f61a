"""``feature-party init`` and ``doctor`` look at features, certificates and the labels party."""

from __future__ import annotations

import datetime
import json
import re
import socket
from dataclasses import replace
from pathlib import Path

import grpc
import polars as pl
import pytest

from labelveil.common.config.examination import NotYetThere
from labelveil.common.errors import LabelveilError, ReleaseError
from labelveil.common.release.event_keys import hash_keys, read_secret
from labelveil.common.security.pilot_certificates import (
    CertificateFiles,
    Role,
    issue,
    make_authority,
)
from labelveil.feature_party.client.release_client import ReleaseClient
from labelveil.feature_party.commands.cli import main
from labelveil.feature_party.commands.doctor import check_address
from labelveil.feature_party.config.labels_party import LabelsPartySection
from labelveil.feature_party.tables import scan_table
from tests.commands import Result, RunCommand
from tests.feature_party.servers import Behaviour, certificates, serving
from tests.feature_party.worlds import World

INIT = ("init", "--features", "clicks.csv", "--key", "id")


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("clicks.csv").write_text("id,price\na,1.5\nb,2\n")


def everything() -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--features", "clicks.csv", "--key", "idd"), "no key column 'idd'"),
        (("--features", "clicks.csv", "--key", "\x1b[2J"), "no key column '\\x1b[2J'"),
        (("--features", "broken.parquet", "--key", "id"), "broken.parquet"),
        (("--features", "clicks.xlsx", "--key", "id"), "suffix '.xlsx'"),
        (("--features", "typed.parquet", "--key", "id"), "id"),
    ],
)
def test_features_that_are_not_as_said_write_nothing(
    given: tuple[str, ...], said: str, run_command: RunCommand
) -> None:
    Path("broken.parquet").write_bytes(b"PAR1 and no more")
    Path("clicks.xlsx").write_text("id\na\n")
    pl.DataFrame({"id": [[1]], "price": [2.0]}).write_parquet("typed.parquet")
    before = everything()
    line = run_command(main, "init", *given).error
    assert said in line
    assert "nothing was written; with --unverified it is written all the same" in line
    assert everything() == before
    done = run_command(main, "init", *given, "--unverified")
    assert done.code == 0
    assert done.out.splitlines()[-1].startswith("not verified: ")
    assert Path("feature_party.toml").exists()


def test_what_is_not_there_yet_is_the_last_line(run_command: RunCommand) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    given = ("--features", "none.csv", "--key", "id", "--address", f"127.0.0.1:{port}")
    done = run_command(main, "init", *given)
    assert done.code == 0
    last = done.out.splitlines()[-1]
    assert last == (
        f"not verified: none.csv does not exist yet; 127.0.0.1:{port} was not asked, as"
        " certificates/ca.pem does not exist yet; examples stand in feature_party.toml for"
        " [labels_party] data_set; then run: feature-party doctor"
    )
    done = run_command(main, *INIT, "--data-set", "d", "--config", "whole.toml")
    assert (
        done.out == "wrote whole.toml; read it, then run: feature-party run --config=whole.toml\n"
    )
    done = run_command(main, *INIT, "--config", "of a.toml")
    assert done.out.endswith("; then run: feature-party doctor '--config=of a.toml'\n")


def test_a_column_that_can_be_read_in_two_ways_is_the_last_line(run_command: RunCommand) -> None:
    Path("clicks.csv").write_text('id,price\na,"1,234"\nb,"2,345"\n')
    done = run_command(main, *INIT, "--data-set", "d")
    assert done.code == 0
    last = done.out.splitlines()[-1]
    open_still = "[data.columns] of feature_party.toml is still to be written"
    assert f"{open_still}: clicks.csv: column 'price'" in last


def test_doctor_goes_on_after_what_fails_and_changes_nothing(run_command: RunCommand) -> None:
    assert run_command(main, *INIT, "--data-set", "d").code == 0
    before = everything()
    done = run_command(main, "doctor", "--set", "labels_party.address=127.0.0.1:1")
    assert done.code == 1
    assert done.err.startswith("error: 3 of 7 checks failed: keys, certificates, address")
    states = {
        line[8:].split()[0]: line[:6].strip() for line in done.out.splitlines() if line[0] != " "
    }
    assert states == {
        "features": "ok", "columns": "ok", "keys": "failed", "certificates": "failed",
        "proxies": "ok", "address": "failed", "matches": "open",
    }  # fmt: skip
    assert "\n  price: number 1234.5\n" in done.out
    shown = run_command(main, "doctor", "--json").out
    assert [finding["check"] for finding in json.loads(shown)] == list(states)
    assert everything() == before
    rows = {"id": ["a", "b", "a"], "price": ["1.5"] * 3, "basket": [["x"], ["y"], []]}
    pl.DataFrame(rows).write_parquet("clicks.parquet")
    for ignored, failed in ("[]", "features, columns"), ("[basket]", "features"):
        flags = ("--features", "clicks.parquet", "--set", f"data.ignore={ignored}")
        refused = run_command(main, "doctor", *flags)
        assert f"checks failed: {failed}, keys" in refused.err
        assert "1 rows, the first of them row 3, repeat a key" in refused.out
        assert ("has type List(String), which cannot be a feature" in refused.out) == (
            "columns" in failed
        )


def test_the_labels_party_is_asked_before_a_file_names_it(
    world: World, run_command: RunCommand
) -> None:
    """One that does not answer, or has no release yet, is no mistake; any other answer is."""
    mine, other = certificates(Path("certificates")), certificates(Path("other"))
    init = ("init", "--features", str(world.features), "--key", "event", "--data-set", "sales")

    def asked(theirs: CertificateFiles, behaviour: Behaviour) -> Result:
        with serving(world, behaviour, theirs) as address:
            return run_command(main, *init, "--force", "--address", address)

    ready = "wrote feature_party.toml; read it, then run: feature-party run\n"
    assert asked(mine, Behaviour()).out == ready
    Path("feature_party.toml").unlink()
    stranger = replace(
        other,
        label_party_certificate=mine.label_party_certificate,
        label_party_key=mine.label_party_key,
    )
    refusals = {
        "not signed by the configured authority": (other, Behaviour()),
        "does not accept our certificate": (stranger, Behaviour()),
        "refuses this client": (mine, Behaviour(refuse=grpc.StatusCode.PERMISSION_DENIED)),
    }
    for said, server in refusals.items():
        done = asked(*server)
        # around it are gRPC's own, of both ends in this process
        (line,) = [each for each in done.err.splitlines() if each.startswith("error: ")]
        assert done.code == 1
        assert said in line
        assert "nothing was written; with --unverified" in line
        assert not Path("feature_party.toml").exists()
    for said, behaviour in {
        "has no release for data set 'sales'": Behaviour(absent=9),
        "cannot be reached": Behaviour(refuse=grpc.StatusCode.UNAVAILABLE),
    }.items():
        done = asked(mine, behaviour)
        assert done.code == 0
        assert said in done.out.splitlines()[-1]
    long_ago = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    expired = issue(make_authority(), Role.CLIENT, ["feature-party"], days=1, valid_from=long_ago)
    mine.feature_party_certificate.write_bytes(expired.certificate_pem)
    mine.feature_party_key.write_bytes(expired.key_pem)
    assert "expired on" in run_command(main, *init, "--force", "--address", "localhost:1").error


class Refused(grpc.RpcError):
    def __init__(self, code: grpc.StatusCode) -> None:
        self.code = lambda: code


@pytest.mark.parametrize(
    ("cause", "kind"),
    [
        (Refused(grpc.StatusCode.NOT_FOUND), NotYetThere),
        (Refused(grpc.StatusCode.INTERNAL), ReleaseError),
        (ValueError("damaged"), ReleaseError),
        (None, ReleaseError),
    ],
)
@pytest.mark.parametrize(("timeout", "waited"), [(60.0, 15.0), (5.0, 5.0)])
def test_a_release_that_is_not_there_yet_is_no_failure_and_nobody_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, cause: Exception | None, kind: type[Exception],
    timeout: float, waited: float,
) -> None:  # fmt: skip
    def describe(client: ReleaseClient, stage: str) -> None:
        assert (client.settings.timeout, client.settings.wait) == (waited, 0.0)
        raise ReleaseError("none") from cause

    monkeypatch.setattr(ReleaseClient, "describe", describe)
    with pytest.raises(LabelveilError, match="none") as caught:
        check_address(LabelsPartySection(timeout=timeout, wait=9.0))
    assert caught.type is kind


def test_doctor_looks_at_each_labels_party(run_command: RunCommand) -> None:
    parties = '[[labels_party]]\nname = "{}"\naddress = "127.0.0.1:1"\ndata_set = "{}"\n'
    both = "".join(parties.format(name, name) for name in ("north", "south"))
    Path("feature_party.toml").write_text(both)
    done = run_command(main, "doctor", "--json", "--features", "clicks.csv", "--key", "id")
    found = [finding["check"] for finding in json.loads(done.out)]
    each = ("keys", "certificates", "proxies", "address", "matches")
    assert found == [
        "features", "columns", *(f"{what} {name}" for name in ("north", "south") for what in each)
    ]  # fmt: skip


def test_features_are_looked_at_without_a_key(run_command: RunCommand) -> None:
    named = ("--data-set", "d", "--config")
    assert run_command(main, "init", "--features", "clicks.csv", *named, "a.toml").code == 0
    Path("clicks.xlsx").touch()
    line = run_command(main, "init", "--features", "clicks.xlsx", *named, "b.toml").error
    assert "suffix '.xlsx'" in line


def test_doctor_says_what_is_served_and_how_much_of_it_matches(
    world: World, run_command: RunCommand
) -> None:
    mine = certificates(Path("certificates"))
    given = ("--features", str(world.features), "--key", "event", "--data-set", "sales")
    with serving(world, Behaviour(), mine) as address:
        given = (*given, "--address", address, "--secret-file", str(world.secret_file))
        assert run_command(main, "init", *given).code == 0
        before = run_command(main, "doctor")
        assert run_command(main, "fetch", "-q").code == 0
        done = run_command(main, "doctor")
        foreign = run_command(main, "doctor", "--secret-file", str(mine.join_secret))
    assert (before.code, done.code, foreign.code) == (0, 0, 1), (before, done, foreign)
    assert "open    matches" in before.out
    assert f"{address} serves 'sales'" in done.out
    own, theirs = mine.feature_party_certificate, mine.authority
    assert re.search(rf"{own} of [^;]*feature-party[^;]*; {theirs} until 20\d\d", done.out)
    keys = scan_table(world.features).collect()["event"]
    hashed = hash_keys(keys, read_secret(world.secret_file))
    sent = {world.keys[at : at + 16] for at in range(0, len(world.keys), 16)}
    known = sum(hashed[at : at + 16] in sent for at in range(0, len(hashed), 16))
    assert f"{len(sent):,} events" in done.out
    share = f"{known / len(keys):.1%} of the first {len(keys):,} events are in the release"
    assert share in done.out
    assert "failed  matches       0.0% of the first" in foreign.out
