"""``label-party serve`` and ``doctor`` in this process: what is announced, and where."""

from __future__ import annotations

import json
import re
import socket
import stat

import pytest

from labelveil.common.signals import Stop
from tests.label_party.conftest import Party


@pytest.mark.parametrize("observed", [False, True])
@pytest.mark.parametrize("asked", [False, True])
def test_what_a_server_announces_is_what_is_configured(
    party: Party, observed: bool, asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The price of the first question stands there before anybody can ask it."""
    hangups: list[object] = []
    monkeypatch.setattr(Stop, "wait", lambda stop, *, on_hangup: hangups.append(on_hangup))
    settings = {"privacy__account": "shop", "privacy__total_epsilon": 9}
    assert party.release(**settings).code == 0
    if observed:
        settings |= {"observability__listen": "127.0.0.1:0"}
    if asked:
        settings |= {"evaluation__offered": "true", "evaluation__epsilon": 0.25}
    served = party.run("serve", "--port-file=port", *party.arguments(**settings))
    assert served.code == 0, served
    port = (party.folder / "port").read_text()
    assert stat.S_IMODE((party.folder / "port").stat().st_mode) == 0o644  # for whoever waits for it
    lines = served.out.splitlines()
    assert lines[0] == f"serving on localhost:{port.strip()}"
    more = [line for line in lines[1:] if line.startswith("probes")]
    assert len(more) == observed
    assert all(re.fullmatch(r"probes and metrics on http://127\.0\.0\.1:[1-9]\d*", n) for n in more)
    assert (
        lines[1 + observed :]
        == [
            "the first question about data set labels, epoch 1, will charge account shop ε = 0.25"
            " (replace-label, per record)"
        ]
        * asked
    )
    (on_hangup,) = hangups
    assert getattr(on_hangup, "__name__", "") == "reload"


def test_a_port_file_that_cannot_be_written_ends_the_server(party: Party) -> None:
    served = party.run(
        "serve", "--port-file=absent/port", *party.arguments(server__log_level="error")
    )
    assert served.code == 1
    assert served.err.startswith("error: port file absent/port cannot be written: ")


def test_doctor_names_the_accounts_of_a_store(party: Party) -> None:
    def budget(**settings: object) -> str:
        told = json.loads(party.run("doctor", "--json", *party.arguments(**settings)).out)
        (line,) = (each["line"] for each in told if each["check"] == "budget")
        return str(line)

    paid = (
        "account labels pays for these events: spent nothing of ε = 3 (replace-label, per record)"
    )
    assert budget() == f"{paid}, left ε = 3, by the ledger in label_store"
    apart = {"privacy__account": "other", "data__data_set": "more"}
    party.write_population({"key": [f"other-{i}" for i in range(200)]})
    assert party.release(**apart).code == 0
    assert (
        budget() == f"{paid}, left ε = 3, by the ledger in label_store; others in this store: other"
    )
    assert budget(**apart).startswith("account other pays for these events: spent ε = 1 of ε = 3")


@pytest.mark.parametrize(("host", "family"), [("127.0.0.1", "IPv4"), ("[::1]", "IPv6")])
def test_doctor_leaves_an_address_free_that_it_has_tried(
    party: Party, host: str, family: str
) -> None:
    kind = socket.AF_INET6 if family == "IPv6" else socket.AF_INET
    try:
        with socket.create_server((host.strip("[]"), 0), family=kind) as free:
            port = free.getsockname()[1]
    except OSError:
        pytest.skip(f"no {family} here")
    for _ in range(2):
        told = json.loads(party.run("doctor", "--json", f"--set=server.listen={host}:{port}").out)
        (found,) = (each for each in told if each["check"] == "address")
        assert found["state"] == "open"
        assert found["line"] == f"nothing listens on {host}:{port} yet; run label-party serve"


def test_doctor_says_what_it_has_read(party: Party) -> None:
    text = (party.folder / "label_party.toml").read_text()
    alone = text.replace('population = "population.csv"', "")
    (party.folder / "label_party.toml").write_text(alone)
    told = json.loads(party.run("doctor", "--json", "--set=privacy.total_epsilon=0.5").out)
    lines = {each["check"]: each["line"] for each in told}
    assert lines["configuration"] == (
        "data set labels, epoch 1: label in 0 … 10; ε = 1, of ε = 0.5 (replace-label, per record)"
        " in all"
    )
    assert lines["labels"] == "labels.csv: key, label"
    assert lines["population"] == "the labels' keys"
    assert lines["keys"] == "join secret in join.key; releases are not signed"
    assert party.run("init", "--new-signing-key", "--signing-key=s.key").code == 0
    told = json.loads(party.run("doctor", "--json", "--set=keys.signing_key=s.key").out)
    lines = {each["check"]: each["line"] for each in told}
    assert lines["keys"] == "join secret in join.key, signing key in s.key"
    submitted = party.run("doctor", "--json", "--set=data.population=submitted").out
    lines = {each["check"]: each["line"] for each in json.loads(submitted)}
    assert lines["population"] == "submitted by the features party"
