"""What no client could use is not served: it is refused at the start, and the old one is kept."""

from __future__ import annotations

import datetime
import os
import signal
from collections.abc import Callable

import grpc
import pytest

from labelveil.common.errors import ConfigError
from labelveil.common.security.pilot_certificates import Authority, Credentials, Role, issue
from labelveil.label_party.server.calls import ActiveCalls, Rpc
from labelveil.label_party.server.credentials import ServerCredentials
from labelveil.label_party.server.handshakes import Handshakes
from labelveil.label_party.server.run import running
from tests.common.security.keys import write_key
from tests.common.security.odd_keys import UNUSABLE, USABLE, issue_for
from tests.label_party.conftest import CLIENT, Client, Party, eventually
from tests.label_party.monitoring.test_observed import observed
from tests.label_party.serving import get, metrics, serving

Connect = Callable[..., Client]
Pair = tuple[Credentials, str]

NOW = datetime.datetime.now(datetime.UTC)
TOMORROW = NOW + datetime.timedelta(days=1)


def pairs(authority: Authority, role: Role, name: str) -> list[Pair]:
    """Certificates of the right authority that are of no use now, and what is said of each."""
    odd = [
        (issue_for(make(), authority, role, name), kind) for make, kind in UNUSABLE.values()
    ]  # each is a pair: only its kind is wrong
    (other,) = {*Role} - {role}
    of_another = "serverAuth" if role is Role.SERVER else "clientAuth"
    return [
        *odd,
        (issue(authority, role, [name], valid_from=TOMORROW), "is valid from"),
        (issue(authority, role, [name], days=1, valid_from=NOW - 3 * (TOMORROW - NOW)), "expired"),
        (issue(authority, other, [name]), of_another),
    ]


def write_pair(party: Party, pair: Credentials) -> None:
    (party.folder / "server.pem").write_bytes(pair.certificate_pem)
    write_key(party.folder / "server.key", pair.key_pem)


def test_a_server_that_no_client_could_use_does_not_start(
    party: Party, authority: Authority
) -> None:
    for pair, said in pairs(authority, Role.SERVER, "localhost"):
        write_pair(party, pair)
        ended = party.run("serve", *party.arguments(server__log_level="error"))
        assert ended.code == 1
        assert ended.err.splitlines()[-1].startswith("error: certificate server.pem ")
        assert said in ended.err.splitlines()[-1]


def test_an_authority_of_tomorrow_does_not_start(
    party: Party, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    from labelveil.common.security import pilot_certificates as pilot

    monkeypatch.setattr(pilot, "_CLOCK_SKEW", datetime.timedelta(days=-1))
    coming = pilot.make_authority("the next")
    (party.folder / "ca.pem").write_bytes(coming.pem)
    ended = party.run("serve", *party.arguments(server__log_level="error"))
    assert "error: certificate ca.pem is valid from" in ended.err
    # beside one that is in force it may stand: it is for the rotation
    (party.folder / "ca.pem").write_bytes(coming.pem + authority.pem)
    with running(party.config()):
        pass


@pytest.mark.slow
@pytest.mark.parametrize("make", USABLE.values(), ids=USABLE)
def test_keys_that_serve_are_taken_at_both_ends(
    party: Party, authority: Authority, connect: Connect, make: Callable[[], object]
) -> None:
    assert party.release().code == 0
    write_pair(party, issue_for(make(), authority, Role.SERVER, "localhost"))
    with running(party.config()) as address:
        assert (
            connect(address, issue_for(make(), authority, Role.CLIENT, CLIENT)).describe().manifest
        )


def test_what_no_client_could_use_is_not_reloaded(
    party: Party, authority: Authority, connect: Connect
) -> None:
    assert party.release().code == 0
    reloads = 'label_party_certificate_reloads_total{outcome="%s"}'
    with observed(party) as (server, address):
        for pair, _ in pairs(authority, Role.SERVER, "localhost"):
            before = metrics(address)[reloads % "failed"]
            write_pair(party, pair)
            assert connect(server.address).describe().manifest
            assert metrics(address)[reloads % "failed"] > before
            assert get(address, "/readyz") == (200, "ok\n")
        assert metrics(address)[reloads % "done"] == 0
        write_pair(party, issue(authority, Role.SERVER, ["localhost"]))
        assert connect(server.address).describe().manifest
        assert metrics(address)[reloads % "done"] == 1


class Earlier(datetime.datetime):
    """Three years ago."""

    @classmethod
    def now(cls, tz: object = None) -> datetime.datetime:  # type: ignore[override]
        return datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=3 * 365)


def test_a_clock_that_is_years_back_is_not_ready(
    party: Party, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert party.release().code == 0
    with observed(party) as (_, address):
        for module in (
            "labelveil.common.security.certificate_checks",
            "labelveil.label_party.server.catalog",
        ):
            monkeypatch.setattr(f"{module}.datetime", Earlier)
        status, text = get(address, "/readyz")
        assert status == 503
        assert text.startswith("a certificate is not valid\nthe clock says ")
        assert "before the ledger's last charge of " in text


@pytest.mark.slow
def test_who_is_refused_is_named_and_whose_certificate_ends_is_known(
    party: Party, authority: Authority, connect: Connect, client_identity: Credentials
) -> None:
    assert party.release().code == 0
    with serving(party) as server:
        early = connect(
            server.address, issue(authority, Role.CLIENT, [CLIENT], valid_from=TOMORROW)
        )
        with pytest.raises(grpc.RpcError):
            early.describe()
        eventually(lambda: server.refusals("certificate_not_yet_valid") >= 1)
        assert connect(server.address, client_identity).describe().manifest
        ends = server.metric(
            f'label_party_client_certificate_expiry_timestamp_seconds{{client="{CLIENT}"}}'
        )
        assert abs(ends - (NOW + datetime.timedelta(days=365)).timestamp()) < 3600
        with pytest.raises(grpc.RpcError):
            connect(server.address, issue(authority, Role.CLIENT, ["other.example"])).describe()
    last = server.events("call")[-1]
    assert last["reason"] == "unknown_client"
    assert last["subject"] == "CN=other.example"
    assert last["peer"].startswith(("ipv4:127.0.0.1:", "ipv6:[::1]:"))


@pytest.mark.slow
def test_a_hangup_reads_the_certificates_again_and_ends_nothing(
    party: Party, authority: Authority, connect: Connect
) -> None:
    assert party.release().code == 0
    reloads = 'label_party_certificate_reloads_total{outcome="%s"}'
    with serving(party) as server:
        server.process.send_signal(signal.SIGHUP)  # unchanged files, too
        eventually(lambda: server.metric(reloads % "done") == 1)
        write_pair(party, issue(authority, Role.SERVER, ["localhost"]))
        server.process.send_signal(signal.SIGHUP)
        eventually(lambda: server.metric(reloads % "done") == 2)
        assert connect(server.address).describe().manifest
        assert server.process.poll() is None
    assert server.process.returncode == 0
    assert len(server.events("reloading")) == 2
    assert len(server.events("certificates reloaded")) == 2


@pytest.mark.slow
def test_a_bad_pair_is_said_once_a_minute_however_often_it_is_read(
    party: Party, authority: Authority, connect: Connect
) -> None:
    assert party.release().code == 0
    failed = 'label_party_certificate_reloads_total{outcome="failed"}'
    with serving(party) as server:
        (party.folder / "server.pem").write_bytes(
            issue(authority, Role.SERVER, ["localhost"]).certificate_pem
        )
        for _ in range(20):
            assert connect(server.address).describe().manifest
        assert server.metric(failed) >= 20
        (line,) = server.events("certificates not reloaded")
    assert line["level"] == "error"
    assert "private key server.key does not belong to certificate server.pem" in line["reason"]


@pytest.mark.parametrize("name", ["server.pem", "server.key", "ca.pem"])
def test_each_file_is_read_again_where_it_was_exchanged_and_named_where_it_is_gone(
    party: Party, name: str
) -> None:
    own = ServerCredentials(party.config().server, Handshakes())
    assert own._changed() is None
    path = party.folder / name
    data = path.read_bytes()
    path.rename(party.folder / "old")
    assert own._changed() is None  # what is in use stays
    assert own.reloads == {"done": 0, "failed": 1}
    remedy = r"cannot be read: .*; set \[server\] .* or make test certificates with labelveil cert"
    with pytest.raises(ConfigError, match=f"{name} {remedy}"):
        ServerCredentials(party.config().server, Handshakes())
    write_key(path, data)
    assert own._changed() is not None
    assert own.reloads == {"done": 1, "failed": 1}
    assert own._changed() is None
    # another file of the same moment, as one that was copied with its times is
    moment = path.stat()
    write_key(party.folder / "new", data)
    os.utime(party.folder / "new", ns=(moment.st_atime_ns, moment.st_mtime_ns))
    (party.folder / "new").replace(path)
    assert own._changed() is not None
    assert own._changed() is None


def test_a_stop_waits_for_no_call_that_has_ended(party: Party, connect: Connect) -> None:
    """However it ended: a call that stayed noted would hold up every stop."""
    made: list[ActiveCalls] = []
    begun: list[Rpc] = []
    with pytest.MonkeyPatch.context() as patch:
        init, begin = ActiveCalls.__init__, ActiveCalls.begin
        patch.setattr(
            ActiveCalls, "__init__", lambda own, *given: (made.append(own), init(own, *given))[1]
        )
        patch.setattr(
            ActiveCalls, "begin", lambda own, rpc: (begun.append(rpc), begin(own, rpc))[1]
        )
        assert party.release().code == 0
        with running(party.config()) as address:
            client = connect(address)
            client.fetch(client.describe())
            with pytest.raises(grpc.RpcError):
                client.describe(epoch="none")
            assert len(begun) == 3
            eventually(lambda: not made[0]._rpcs)
            assert made[0]._none.is_set()
