"""What accounting, simulate, demo, compare and certificates run, print and keep."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from cryptography import x509
from typer.core import TyperGroup
from typer.main import get_command

from labelveil.commands.cli import app, main
from labelveil.comparison import Comparison, Job, Method
from labelveil.comparison.tables import Cell
from labelveil.simulation import Outcome
from labelveil.simulation.demo_data import KEY
from tests.commands import Result, RunCommand

Ran = Callable[..., Result]


@pytest.fixture
def ran(run_command: RunCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ran:
    """Run a command in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: run_command(main, *arguments)


def cells_of(line: str) -> list[str]:
    return [cell.strip() for cell in line.replace("┃", "│").split("│")[1:-1]]


def rows_of(output: str) -> list[list[str]]:
    """The cells of a table on the terminal, its head first."""
    return [cells_of(line) for line in output.splitlines() if line[:1] in "┃│" and line]


@pytest.fixture
def totals(monkeypatch: pytest.MonkeyPatch) -> dict[str, Callable[[int], float]]:
    """What each method is taken to say of m releases; composing takes seconds."""
    methods: dict[str, Callable[[int], float]] = {
        "basic": lambda m: m / 2,
        "RDP": lambda m: m**0.5,
        "odometer": lambda m: math.inf,
    }

    def view(release: Any, times: Any, delta: float) -> dict[str, list[float]]:
        return {name: [delta * 1e6 * of(m) for m in times] for name, of in methods.items()}

    monkeypatch.setattr("labelveil.commands.accounting.composition_view", view)
    return methods


def test_totals_are_shown_at_one_at_few_and_at_all_releases(
    ran: Ran, totals: dict[str, Callable[[int], float]]
) -> None:
    compose = ["accounting", "compose", "--epsilon", "0.5"]
    done = ran(*compose, "--times", "1000")
    assert "ε-DP, ε = 0.5; total ε at δ = 1e-06" in " ".join(done.out.split())
    assert rows_of(done.out) == [
        ["composition", "1 release", "32 releases", "1,000 releases"],
        ["basic", "0.5", "16", "500"],
        ["RDP", "1", "5.657", "31.62"],
        ["odometer", "∞", "∞", "∞"],
    ]
    told = json.loads(ran(*compose, "--json").out)
    # thirteen numbers of releases, each about 1.47 times the one before, of which some are the same
    assert told["releases"] == [1, 2, 3, 5, 7, 10, 15, 22, 32, 46, 68, 100]
    assert told["epsilon"]["basic"] == [count / 2 for count in told["releases"]]
    assert told["epsilon"]["odometer"] == [None] * 12
    assert (told["mechanism"], told["delta"]) == ("ε-DP, ε = 0.5", 1e-6)
    one = ran(*compose, "--times", "1", "--delta", "2e-6")
    assert rows_of(one.out)[:2] == [["composition", "1 release"], ["basic", "1"]]
    assert "at δ = 2e-06" in " ".join(one.out.split())
    assert "plot" not in one.out
    for bad in ("0", "1000001"):
        assert f"--times={bad} must be" in ran(*compose, "--times", bad).error


def test_what_a_loss_distribution_needs_is_named_where_it_would_help(
    ran: Ran, totals: dict[str, Callable[[int], float]]
) -> None:
    compose = ["accounting", "compose", "--epsilon", "1"]
    assert "PLD left out: it needs dp-accounting; run: pip install" in ran(*compose).out
    assert "left out" not in ran(*compose, "--mechanism", "top-k").out
    totals["PLD"] = lambda m: m / 3
    assert "left out" not in ran(*compose).out


def test_a_plot_is_written_where_it_can_be(
    ran: Ran, tmp_path: Path, totals: dict[str, Callable[[int], float]]
) -> None:
    totals |= {"PLD": lambda m: m / 3, "filter": lambda m: m / 4}
    options = ["accounting", "compose", "--epsilon", "0.1", "--times", "50"]
    done = ran(*options, "--plot", "p.png")
    assert done.out.endswith("\nplot: p.png\n")
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    refused = ran(*options, "--plot", "nowhere/p.png")
    assert "nowhere" in refused.error


def test_a_budget_is_divided_in_a_table_or_as_json(ran: Ran) -> None:
    pure = ["accounting", "split", "--epsilon", "1", "--stage", "prior:1:1:2", "--stage",
            "labels:8:1:1000"]  # fmt: skip
    output = ran(*pure).out
    assert "ε = 1" in output
    assert "δ" not in output
    head, prior, labels = rows_of(output)
    assert head == ["stage", "ε each", "times", "noise scale", "weighted variance"]
    # shares of 1 and 2: of 2 · 1 + 1,000 · 2 = 2,002 parts
    assert prior == ["prior", "0.0004995", "2", "2002", f"{2 * 2 * 2002.0**2:.4g}"]
    assert labels == ["labels", "0.000999", "1,000", "1001", f"{8 * 2 * 1001.0**2 * 1000:.4g}"]
    head, _, _ = rows_of(gaussian := ran(*pure, "--delta", "1e-6").out)
    assert head == ["stage", "ρ each", "times", "noise σ", "weighted variance"]
    assert "ε = 1, δ = 1e-06" in gaussian
    told = json.loads(ran(*pure, "--json").out)
    assert [one["name"] for one in told] == ["prior", "labels"]
    assert told[1]["budget"] == pytest.approx(2 / 2002)


def outcome_of(folder: Path, **more: Any) -> Outcome:
    metrics = {
        "epsilon": 1.0, "epsilon_prior": 0.25, "epsilon_labels": 0.75, "outputs": 7, "points": 11,
        "randomizer": "rr-on-bins", "grid": "11 points, step 1", "objective": "likelihood",
        "head": "gaussian", "rows": 1200, "holdout_rows": 200,
        "label_mse": 2.5, "test_mse": 3.0, "constant_mse": 4.0,
        "warnings": ["few labels"], **more,
    }  # fmt: skip
    return Outcome(metrics, folder / "report.html", None)


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """The settings of each simulation, which has one outcome."""
    seen: list[Any] = []

    def simulate(settings: Any, reference: Any = None) -> Outcome:
        seen.append(settings)
        if reference is not None:
            seen.append(json.loads(reference().read_text()))
        return outcome_of(tmp_path)

    monkeypatch.setattr("labelveil.commands.simulate.run_simulation", simulate)
    monkeypatch.setattr("labelveil.commands.demo.run_simulation", simulate)
    return seen


SIMULATE = [
    *("simulate", "--labels", "a.csv", "--features", "b.csv", "--label", "y", "--lower", "0"),
    *("--upper", "10", "--epsilon", "1", "--out", "out"),
]


def test_a_simulation_is_shown_as_a_table_as_json_or_not(ran: Ran, simulated: list[Any]) -> None:
    shown = ran(*SIMULATE)
    assert shown.code == 0
    lines = [line.strip() for line in shown.out.splitlines()]
    assert lines[-3:] == ["warning: few labels", "", f"report: {Path.cwd() / 'report.html'}"]
    (model,) = (row for row in rows_of(shown.out) if row[0] == "this model")
    assert model[1:] == ["3", "on the events kept; explains 25% of the variance"]
    told = json.loads(ran(*SIMULATE, "--json").out)
    assert told == {**outcome_of(Path()).metrics, "report": str(Path.cwd() / "report.html")}
    assert ran(*SIMULATE, "--quiet").out == ""
    assert (simulated[0].epsilon, simulated[0].out) == (1.0, Path("out"))


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The settings of each comparison that a demonstration makes."""
    seen: list[Any] = []

    def compare(settings: Any) -> Comparison:
        seen.append(settings)
        figures = [{"test_mse": 1.0}, {"test_mse": 3.0, "constant_mse": 6.0}]
        settings.out.mkdir(parents=True)
        return Comparison(figures, [], settings.out)

    monkeypatch.setattr("labelveil.commands.demo.run_comparison", compare)
    return seen


@pytest.mark.parametrize(
    ("example", "label", "upper", "other", "harder"),
    [
        ("diamonds", "price", 20_000, "visits", "a harder"),
        ("visits", "mdvis", 77, "diamonds", "an easier"),
    ],
)
def test_a_demonstration_simulates_beside_the_published_method(
    ran: Ran, simulated: list[Any], compared: list[Any], example: str, label: str, upper: int,
    other: str, harder: str
) -> None:  # fmt: skip
    done = ran("demo", example, "--rows", "1000", "--epsilon", "2", "--seed", "5")
    settings, reference = simulated
    (beside,) = compared
    for each in (settings, beside):
        assert [*each.label] == [label]
        assert (each.lower, each.upper, each.key) == (0, upper, KEY)
        assert each.labels.parent == Path("out/demo/data")
    assert (settings.epsilon, settings.seed, settings.overwrite) == (2.0, 5, True)
    assert settings.decided(20_000).shares == []  # one message, whatever would teach more
    assert settings.out == Path("out/demo/run")
    assert (beside.epsilons, beside.methods, beside.runs) == ((2.0,), ["rr-on-bins:raw"], 1)
    assert (beside.training, beside.quiet) == (["ensemble=4"], True)
    assert reference == {"test_mse": 1.0}  # on true labels
    table = " ".join(done.out.split())
    assert "RR-on-bins" in table
    # half of its own constant's error is half of this one's
    assert "explains 50% of the variance" in table
    assert done.out.splitlines()[-4:] == [
        "next, what manifest and labels file prove by themselves:",
        "  labelveil audit certificate out/demo/run/release",
        f"next, {harder} case:",
        f"  labelveil demo {other}",
    ]
    told = json.loads(ran("demo", example, "--rows", "1000", "--json").out)
    assert told["rr_on_bins_mse"] == 2.0
    assert compared[1].out == Path("out/demo/comparison")  # made anew, and not taken up
    for bad in (["--rows", "999"], ["--epsilon", "0"], ["--seed", "-1"]):
        assert f"{bad[0]}={bad[1]} must be" in ran("demo", *bad).error


def record(epsilon: float, method: Method, **more: Any) -> dict[str, Any]:
    return {**Job(epsilon, 0, method).to_json(), "test_mse": 1.0, **more}


def test_a_comparison_answers_with_its_cells_and_says_what_failed(
    ran: Ran, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "table.md").write_text("# A table\n")
    figures = {"test_mse": 1.5}
    cells = [Cell("auto · auto", 1.0, 2, figures, figures, 4.0, name) for name in ("", "y", "z")]
    records = [record(math.inf, Method("true-labels", "true")), record(1.0, Method("auto"))]
    made = {"cells": cells[:1], "records": records}

    def compare(settings: Any) -> Comparison:
        return Comparison(made["records"], made["cells"], tmp_path)

    monkeypatch.setattr("labelveil.commands.compare.run_comparison", compare)
    one = ["compare", "--labels", "a.csv", "--features", "a.csv", "--out", "out"]
    single = [*one, "--label", "y", "--lower", "0", "--upper", "1"]
    shown = ran(*single)
    assert (shown.code, shown.out) == (0, f"# A table\n\ntables and plots: {tmp_path}\n")
    assert ran(*single, "--quiet").out == ""
    told = json.loads(ran(*single, "--json").out)
    cell = {"method": "auto · auto", "epsilon": 1.0, "runs": 2, "means": figures,
            "deviations": figures, "constant_mse": 4.0}  # fmt: skip
    assert told == {"cells": [cell], "failures": [], "folder": str(tmp_path)}
    made |= {"cells": cells[1:]}
    several = [*one, "--label", "y:0:1", "--label", "z:0:1"]
    told = json.loads(ran(*several, "--json").out)
    assert told["labels"] == [{"name": name, "cells": [cell]} for name in ("y", "z")]
    made |= {"cells": [], "records": [record(1.0, Method("auto"), error="no")]}
    partly = ran(*single, "--json")
    assert (partly.code, json.loads(partly.out)["cells"]) == (3, [])
    assert partly.err == "warning: auto · auto could not be run: no\n"


def test_certificates_are_made_for_whom_and_as_long_as_is_said(ran: Ran, tmp_path: Path) -> None:
    made = ran("certificates", "--out", "c", "--label-host", "labels.example", "--label-party",
               "shop", "--feature-party", "news", "--days", "30")  # fmt: skip
    lines = made.out.splitlines()
    files = sorted(path.name for path in (tmp_path / "c").iterdir())
    assert lines[0] == f"Wrote {len(files)} files to c:"
    both = "ca.pem, join.key"
    assert lines[1:] == [
        f"  labels party    shop.pem, shop.key, {both}",
        f"  features party  news.pem, news.key, {both}",
        "For tests and pilots only: a real deployment brings its own authority.",
    ]
    for name in ("shop", "news"):
        certificate = x509.load_pem_x509_certificate((tmp_path / "c" / f"{name}.pem").read_bytes())
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert name in str(names)
        assert ("labels.example" in str(names)) is (name == "shop")
        days = (certificate.not_valid_after_utc - certificate.not_valid_before_utc).days
        assert 30 <= days <= 31
    (tmp_path / "d").mkdir()
    shutil.copy(tmp_path / "c" / "join.key", tmp_path / "d")
    again = ran("certificates", "--out", "d", "--signing-key").out.splitlines()
    assert again[0] == "Wrote 7 files to d, and kept join.key:"
    private, public = (line.split()[2] for line in again[3:5])
    assert again[3] == f"  to sign         {private} (labels party)"
    assert again[4] == f"  to verify       {public} (features party)"
    assert (tmp_path / "d" / private).is_file()
    assert (tmp_path / "d" / public).is_file()
    told = json.loads(ran("certificates", "--out", "e", "--json").out)
    assert told == {"folder": "e", "files": 6, "public_key": None}
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / public).write_bytes((tmp_path / "d" / public).read_bytes())
    half = ran("certificates", "--out", "f", "--signing-key")
    assert half.error.startswith(f"error: f/{public} exists already without its other half")
    assert [path.name for path in (tmp_path / "f").iterdir()] == [public]
    # without keys to sign it is nobody's business
    assert ran("certificates", "--out", "f").code == 0


def commands_of(command: Any, name: str = "labelveil") -> Iterator[tuple[str, Any]]:
    """A program's groups and commands, by what is typed."""
    yield name, command
    if isinstance(command, TyperGroup):
        context = typer.Context(command)
        for each in command.list_commands(context):
            found = command.get_command(context, each)
            yield from commands_of(found, f"{name} {each}")


def test_every_command_says_what_it_does_with_an_example() -> None:
    known = dict(commands_of(get_command(app)))
    assert set(known) == {
        *("labelveil", "labelveil demo", "labelveil simulate", "labelveil compare"),
        *("labelveil certificates", "labelveil audit", "labelveil accounting"),
        *("labelveil accounting compose", "labelveil accounting split"),
        *(f"labelveil audit {name}" for name in ("certificate", "mechanism", "party", "inference")),
        *(f"labelveil audit canaries{name}" for name in ("", " plant", " ask", " score")),
    }
    for name, command in known.items():
        assert (command.help or "").endswith((".", ".\n")), name
        group = isinstance(command, TyperGroup)
        assert command.no_args_is_help is group, name
        assert command.rich_markup_mode is None, name
        if name not in ("labelveil", "labelveil accounting"):
            assert re.match("Examples?: labelveil ", command.epilog or ""), name
        for option in command.params:
            assert getattr(option, "help", None), (name, option.name)
    for name in ("labelveil audit", "labelveil audit canaries"):
        assert not [o for o in known[name].params if "completion" in o.name], name
