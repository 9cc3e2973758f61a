"""``label-party plan``: useful without a label, and plain about what would leak."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import polars as pl
import pytest

from labelveil.common.security.new_keys import write_secret
from tests.commands import Result

Plan = Callable[..., Result]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    pl.DataFrame({"id": range(300), "amount": [float(i % 9) for i in range(300)]}).write_csv(
        tmp_path / "labels.csv"
    )
    write_secret(tmp_path / "join.key")
    path = tmp_path / "label_party.toml"
    path.write_text(
        f"""
[data]
labels = "{tmp_path}/labels.csv"
key = "id"
label = "amount"
data_set = "sales"
[domain]
lower = 0
upper = 8
[privacy]
epsilon = 1
[keys]
secret_file = "{tmp_path}/join.key"
"""
    )
    return path


@pytest.fixture
def plan(config: Path, monkeypatch: pytest.MonkeyPatch, run_cli: Callable[..., Result]) -> Plan:
    monkeypatch.chdir(config.parent)
    return partial(run_cli, "plan", "--config", str(config))


@pytest.mark.slow
def test_a_plan_needs_no_label_and_writes_no_store(config: Path, plan: Plan) -> None:
    (config.parent / "labels.csv").unlink()
    done = plan("--epsilons", "0.5,2", "--rows", "5000", "--json")
    assert done.code == 0, done
    stated = json.loads(done.out)
    assert stated["events"] == 5000
    assert not stated["leaks"]
    assert {row["epsilon"] for row in stated["candidates"]} == {0.5, 2.0}
    assert all(0 < row["realised_epsilon"] <= row["epsilon"] for row in stated["candidates"])
    assert stated["true_label_error"] < stated["candidates"][0]["predicted_error"]
    assert not (config.parent / "label_store").exists()


def test_a_plan_of_two_labels_compares_the_ways_to_share_epsilon(config: Path, plan: Plan) -> None:
    head, _, rest = config.read_text().replace('label = "amount"\n', "").partition("[domain]")
    labels = '[[label]]\nname = "paid"\nkind = "binary"\n[[label]]\nname = "amount"\n'
    labels += 'kind = "count"\nlower = 0\nupper = 3\n'
    config.write_text(head + labels + rest.partition("upper = 8")[2])
    done = plan("--epsilons", "2", "--rows", "300")
    assert done.code == 0, done
    ways = [line.replace("*", "").split()[1] for line in done.out.splitlines()[1:4]]
    assert ways == ["joint", "separate", "split"]
    said = " ".join(done.out.split())
    for part in (
        "Grid of paid as configured: 2",
        "Grid of amount as configured: 4",
        "derived: if paid",
    ):
        assert part in said


@pytest.mark.slow
def test_a_plan_fits_a_terminal_and_a_pipe(plan: Plan) -> None:
    done = plan("--epsilons", "1", "--rows", "5000", "--explained", "0.9")
    assert done.code == 0, done
    lines = done.out.splitlines()
    assert max(map(len, lines)) <= 80
    assert "…" not in done.out
    assert [line.split()[0] for line in lines if line.startswith("*") and "%" in line] == [
        "*optimal-design"
    ]
    assert "explain 90% of the label's variance" in " ".join(done.out.split())


def test_raw_labels_are_used_on_request_alone_and_with_a_warning(config: Path, plan: Plan) -> None:
    picture = config.parent / "plan.png"
    done = plan("--epsilons", "1", "--raw-labels", "--json", "--plot", str(picture))
    assert done.code == 0, done
    assert "computed from the raw labels" in " ".join(done.err.split())
    assert json.loads(done.out)["leaks"]
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_public_prior_changes_the_plan(config: Path, plan: Plan) -> None:
    guess = config.parent / "guess.csv"
    guess.write_text("label,weight\n0,10\n1,3\n8,0.1\n")
    done = plan("--epsilons", "1", "--prior-file", str(guess))
    assert done.code == 0, done
    assert "optimal-design" in done.out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--epsilons", "x"), "--epsilons 'x' must be numbers"),
        (("--epsilons", "-1"), "epsilon=-1 must be a number above 0"),
        (("--prior-file", "nowhere.csv"), "nowhere.csv is not a file"),
        (("--prior-release", "nowhere"), "nowhere cannot be read"),
        (("--raw-labels", "--prior-release", "x"), "a plan has one prior"),
        (("--plot", "plan.xyz", "--epsilons", "1"), "plan.xyz must end in one of"),
    ],
)
def test_bad_input_is_one_line(plan: Plan, options: tuple[str, ...], message: str) -> None:
    assert message in plan(*options).error
