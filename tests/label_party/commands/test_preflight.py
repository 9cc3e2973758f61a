"""Before the irreversible step: a dry run changes nothing, and "no" spends nothing."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from labelveil.common import console
from labelveil.common.release.folder import MANIFEST_FILE
from labelveil.label_party.events.completion import SEVERAL
from labelveil.label_party.server.run import Running, open_server
from tests.commands import Result
from tests.label_party.conftest import Party

QUESTION = b"[y/N] "

_ON_TERMINAL = """
import fcntl, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # so that ^C typed there is a signal
from labelveil.label_party.commands.cli import main
main()
"""


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def shop(party: Party) -> Party:
    """The party's events by day and product, with every label outside the domain."""
    keys = [f"event-{i}" for i in range(200)]
    days = [f"2024-06-0{1 + i % 2}" for i in range(200)]
    products = [f"p{i % 3}" for i in range(200)]
    party.write_population({"key": keys, "day": days})
    party.write_labels({"key": keys, "label": [99.0] * 200, "day": days, "product": products})
    (party.folder / "products.txt").write_text("p0\np1\np2\n")
    return party


PURCHASES = {
    "release": ["release"],
    "release on two workers": ["release", "--set=engine.workers=2"],
    "watch": ["watch", "--once", "--date=day"],
    "watch with a session": [
        "watch",
        "--once",
        "--date=day",
        "--set=watch.hits=2",
        "--set=privacy.total_delta=1e-6",
        "--set=privacy.total_epsilon=20",
    ],
    "top-k": ["top-k", "--by=product", "--categories=products.txt", "--k=2", "--out=leaders.json"],
    "synthesize": ["synthesize", "--column=product=products.txt", "--bins=4", "--out=table.csv"],
}


every_purchase = pytest.mark.parametrize(
    "command",
    [
        pytest.param(command, marks=[pytest.mark.slow] * ("workers" in name))
        for name, command in PURCHASES.items()
    ],
    ids=PURCHASES,
)


@pytest.mark.slow
@every_purchase
def test_a_dry_run_of_every_purchase_says_what_it_costs_and_writes_nothing(
    shop: Party, command: list[str]
) -> None:
    command = [*command, "--set=privacy.account=shop", "--set=privacy.total_epsilon=20"]
    before = files(shop.folder)
    planned = shop.run(*command, "--dry-run", "--yes")
    assert planned.code == 0, planned
    assert not shop.store.exists()
    assert files(shop.folder) == before
    for fact in (
        "labels.csv: ",
        "population.csv: ",
        "charge  ",
        "left afterwards  ",
        "would write",
    ):
        assert fact in planned.out
    if command[0] != "top-k":
        assert "of 100 labels" in planned.err or "of 200 labels" in planned.err
    # the same once there is a store with a release of another epoch, and once it is bought
    assert shop.run(*command, "--set=data.epoch=0", "--set=data.data_set=other").code == 0
    before = files(shop.folder)
    assert shop.run(*command, "--dry-run", "--yes").code == 0
    assert files(shop.folder) == before
    assert shop.run(*command).code == 0
    before = files(shop.folder)
    again = shop.run(*command, "--dry-run")
    assert again.code == 0
    assert "nothing spent" in again.out or "no new epoch" in again.out
    assert files(shop.folder) == before


@pytest.mark.slow
def test_a_dry_run_fails_where_an_operator_should_look_and_a_release_goes_on(party: Party) -> None:
    assert party.run("release", "--dry-run") == party.run("release", "--dry-run", "--yes")
    rows = [f"event-{i},{i % 10}" for i in range(0, 200, 2)]
    (party.folder / "labels.csv").write_text(
        "\n".join(["key,label", *rows, "event-1,many", ",3", "event-0,4"]) + "\n"
    )
    odd = [
        "labels, column 'key': no key, so that the row names no event: 1 (at 103)",
        "labels, column 'label': not a number: 1 (at 102)",
        f"labels, {SEVERAL}: 1 (at 104)",
    ]
    planned = party.run("release", "--dry-run")
    *warnings, error = planned.err.splitlines()
    assert planned.code == 1
    assert sorted(warnings) == sorted(f"warning: {line}" for line in odd)
    assert error.startswith("error: warnings: 3; mend what is read, or accept them with --yes")
    assert party.nothing_left()
    assert party.run("release", "--dry-run", "--yes").code == 0
    done = party.release()
    assert done.code == 0
    assert all(line in done.err for line in odd)


@pytest.mark.slow
def test_a_dry_run_states_what_the_purchase_then_costs(shop: Party) -> None:
    planned = shop.run("watch", "--once", "--date=day", "--dry-run")
    assert [line.split()[-1] for line in planned.out.splitlines() if "afterwards" in line] == [
        "2",
        "1",
    ]
    done = shop.run("watch", "--once", "--date=day")
    assert "left ε = 2\n" in done.out
    assert "left ε = 1\n" in done.out


@every_purchase
def test_a_dry_run_refuses_what_the_purchase_would_refuse(shop: Party, command: list[str]) -> None:
    refused = shop.run(*command, "--dry-run", "--set=privacy.total_epsilon=0.5")
    assert "asked for" in refused.error
    assert not shop.store.exists()


@pytest.mark.parametrize(
    "command", ["release", "watch", "top-k", "synthesize"], ids=lambda name: name
)
def test_a_dry_run_recognises_events_that_have_paid(shop: Party, command: str) -> None:
    assert shop.release(data__data_set="other").code == 0
    before = files(shop.folder)
    refused = shop.run(*PURCHASES[command], "--dry-run")
    assert "have paid from account 'other'" in refused.error
    assert files(shop.folder) == before


def test_a_dry_run_compares_the_epochs_that_it_plans(shop: Party) -> None:
    keys = [f"event-{i % 190}" for i in range(200)]  # ten of them on both days
    days = ["2024-06-01"] * 100 + ["2024-06-02"] * 100
    shop.write_population({"key": keys, "day": days})
    planned = shop.run(
        "watch", "--once", "--date=day", "--dry-run", "--set=privacy.epochs=disjoint"
    )
    assert "10 events of epoch '2024-06-02' are events of epoch '2024-06-01', too" in planned.err


def test_a_dry_run_knows_the_cap_in_the_ledger(shop: Party) -> None:
    assert shop.release().code == 0
    planned = shop.run(
        "release", "--dry-run", "--set=data.epoch=2", "--set=privacy.total_epsilon=9"
    )
    assert "is capped at" in planned.error


def test_warnings_go_to_the_console_and_nowhere_else(shop: Party) -> None:
    done = shop.release()
    assert done.code == 0
    assert "warning: 200 of 200 labels (100.00%) lie outside lower … upper" in done.err
    for name, data in files(shop.store).items():
        assert b"lie outside" not in data, name
    assert b"200 of 200" not in (shop.store / "releases/labels/1" / MANIFEST_FILE).read_bytes()


def test_a_quiet_job_says_nothing_of_labels(shop: Party) -> None:
    assert shop.run("release", "--dry-run", "--quiet", "--yes").code == 0
    assert not shop.store.exists()
    assert shop.run("release", "--quiet") == Result(0, "", "")


def test_leaders_show_no_bar(shop: Party, monkeypatch: pytest.MonkeyPatch) -> None:
    """A query is over at once; a release of as many rows shows one."""
    shown = Console(file=io.StringIO(), force_terminal=True, width=200)
    monkeypatch.setattr(console, "_SHOW_PROGRESS_ROWS", 0)
    monkeypatch.setattr(console, "stderr", shown)
    assert shop.run(*PURCHASES["top-k"], "--yes").code == 0
    assert "Hashing" not in shown.file.getvalue()
    assert shop.run("release", "--yes", "--epoch=2").code == 0
    assert "Hashing" in shown.file.getvalue()


def test_few_events_for_the_epsilon_are_warned_of(party: Party) -> None:
    assert "events are few" not in party.run("release", "--dry-run").err
    few = party.run("release", "--dry-run", "--epsilon=0.1")
    assert "warning: 200 events are few for epsilon=0.1: a model is predicted" in few.err


@pytest.mark.parametrize(
    "command",
    [
        ["top-k", "--by=product", "--categories=products.txt", "--k=2"],
        ["synthesize", "--column=product=products.txt"],
    ],
)
def test_noise_that_covers_the_average_count_is_warned_of(shop: Party, command: list[str]) -> None:
    assert "events are few" not in shop.run(*command, "--dry-run", "--epsilon=2").err
    few = shop.run(*command, "--dry-run", "--epsilon=0.01")
    assert "warning: 200 events are few for" in few.err


def test_an_unreadable_output_is_refused_before_all_else(shop: Party) -> None:
    for name in ("top-k", "synthesize"):
        command = [part for part in PURCHASES[name] if not part.startswith("--out")]
        refused = shop.run(*command, "--dry-run", "--out=nowhere/x.json")
        assert "there is no folder" in refused.error


@pytest.fixture
def on_terminal(shop: Party) -> Callable[..., tuple[int, bytes]]:
    """Run a command on a terminal of its own, and type an answer once it asks."""

    def run(answer: bytes, *command: str) -> tuple[int, bytes]:
        master, slave = os.openpty()
        process = subprocess.Popen(
            [sys.executable, "-c", _ON_TERMINAL, *command],
            cwd=shop.folder,
            stdin=slave,
            stdout=subprocess.DEVNULL,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        shown = b""
        while True:
            try:
                more = os.read(master, 1 << 12)
            except OSError:  # the process has closed its end
                break
            shown += more
            if shown.endswith(QUESTION):
                os.write(master, answer)
        os.close(master)
        return process.wait(), shown

    return run


def test_no_and_interrupt_spend_nothing(
    shop: Party, on_terminal: Callable[..., tuple[int, bytes]]
) -> None:
    code, shown = on_terminal(b"n\n", *PURCHASES["watch"])
    assert code == 1
    assert b"as answered; nothing was spent" in shown
    code, _ = on_terminal(b"\x03", *PURCHASES["release"])
    assert code == 130
    assert not shop.store.exists()


@pytest.mark.slow
def test_yes_is_typed_or_given(shop: Party, on_terminal: Callable[..., tuple[int, bytes]]) -> None:
    code, shown = on_terminal(b"y\n", "release")
    assert code == 0
    assert QUESTION in shown
    code, shown = on_terminal(b"", "release", "--epoch=2", "--yes")
    assert code == 0
    assert b"warning: " in shown
    assert QUESTION not in shown


@pytest.mark.slow
def test_a_withdrawal_is_asked_about(
    shop: Party, on_terminal: Callable[..., tuple[int, bytes]]
) -> None:
    assert shop.release().code == 0
    command = "withdraw", "1", "--reason=wrong"
    code, shown = on_terminal(b"n\n", *command)
    assert code == 1
    assert b"for ever? [y/N] " in shown
    assert b"not withdrawn, as answered" in shown
    assert on_terminal(b"\x03", *command)[0] == 130
    assert "withdrawn" not in shop.run("budget").out
    assert on_terminal(b"y\n", *command)[0] == 0
    assert "withdrawn" in shop.run("budget").out


@pytest.mark.slow
def test_nothing_is_asked_where_nothing_is_odd(
    shop: Party, on_terminal: Callable[..., tuple[int, bytes]]
) -> None:
    keys = [f"event-{i}" for i in range(200)]
    shop.write_labels({"key": keys, "label": [float(i % 10) for i in range(200)]})
    code, shown = on_terminal(b"", "release", "--epoch=2", "--set=domain.points=11")
    assert (code, shown) == (0, b"")


def test_the_server_says_what_the_first_question_costs(party: Party) -> None:
    def question(**settings: object) -> Running:
        with open_server(party.config(**settings)) as server:
            return server

    assert party.release().code == 0
    assert question().question is None
    price = question(evaluation__offered="true", evaluation__epsilon=0.25).question
    assert str(price) == "ε = 0.25 (replace-label, per record)"


def test_the_operator_is_told_how_many_labels_lie_between_points(party: Party) -> None:
    values = [0.37, 0.5, 0.05, 1.0] * 50
    party.write_labels({"key": [f"event-{i}" for i in range(200)], "label": values})
    rate = ["--upper=1", "--set=domain.grid=auto"]
    between = "2 points, 1 apart; 150 of 200 labels lie between"
    planned = party.run("release", "--dry-run", *rate)
    assert "11 points, 0.1 apart; 100 of 200 labels lie between, which adds 1" in planned.out
    assert "if they always are" not in planned.out
    whole = party.run("release", "--dry-run", "--upper=1", "--set=domain.grid=whole")
    assert between in whole.out
    assert f"warning: the grid has {between}" in whole.err
    assert whole.code == 1
    assert (
        between
        in party.run(
            "plan",
            "--raw-labels",
            "--epsilons=1",
            "--set=domain.grid=whole",
            "--set=domain.upper=1",
        ).out
    )
    told = party.run("plan", "--epsilons=1", "--set=domain.grid=auto", "--set=domain.upper=1").out
    assert "Grid as configured: 11 points, 0.1 apart." in told
    party.write_labels({"key": [f"event-{i}" for i in range(200)], "label": [0.0, 1.0] * 100})
    coins = party.run("release", "--dry-run", *rate)
    assert 'all are whole numbers: if they always are, say grid = "whole"' in coins.out
    assert party.nothing_left()
