"""``labelveil compare``: every job once, resumable, with tables and plots that say what was run."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from labelveil.commands.cli import main
from labelveil.common.entropy import seeded_entropy
from labelveil.common.errors import ConfigError
from labelveil.comparison.run import WorkerFailed, run_jobs
from labelveil.comparison.settings import Job, Method, make_jobs
from labelveil.comparison.tables import (
    GAIN,
    by_label,
    draw,
    summarise,
    write_csv,
    write_markdown,
)
from tests.commands import Result, RunCommand


@pytest.fixture
def events(tmp_path: Path) -> Path:
    words = seeded_entropy(5).words("data", 0, 1200).astype(np.float64) / 2.0**64
    x, noise = words[:600], words[600:]
    table = pl.DataFrame({"id": range(600), "x": x, "y": np.round(8 * x + 2 * noise, 3)})
    table.write_parquet(tmp_path / "events.parquet")
    return tmp_path / "events.parquet"


Compare = Callable[..., Result]


@pytest.fixture
def compare(events: Path, run_command: RunCommand) -> Compare:
    return partial(
        run_command, main, "compare",
        "--labels", str(events), "--features", str(events), "--key", "id", "--label", "y",
        "--set-training", "epochs=2", "--set-training", "ensemble=1", "--workers", "1",
    )  # fmt: skip


@pytest.mark.slow
def test_a_comparison_writes_its_tables_and_takes_up_where_it_was(
    compare: Compare, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    into = ["--out", str(out), "--epsilons", "1"]
    options = [*into, "--lower", "0", "--upper", "10", "--method", "rr-on-bins:raw"]
    first = compare(*options, "--runs", "1")
    assert first.code == 0, first
    lines = (out / "results.jsonl").read_text().splitlines()
    assert len(lines) == 2  # the true labels, too
    (out / "results.jsonl").write_text("\n".join(lines) + '\n{"epsilon": 1.0, "ru')  # cut short
    more = [*options, "--method", "two-point:debiased", "--runs", "2"]
    second = compare(*more)
    assert second.code == 0, second
    kept = (out / "results.jsonl").read_text()
    assert all(line in kept for line in lines)
    records = []
    for line in kept.splitlines():
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    assert len(records) == 2 * 3
    table = pl.read_csv(out / "table.csv")
    assert set(table["method"]) == {"true labels", "rr-on-bins · raw", "two-point · debiased"}
    assert table["runs"].to_list() == [2, 2, 2]
    raw = table.filter(pl.col("method") == "rr-on-bins · raw")
    mean = np.mean([r["test_mse"] for r in records if r["randomizer"] == "rr-on-bins"])
    assert raw["test_mse_mean"][0] == pytest.approx(mean)
    assert "ε = 1" in (out / "table.md").read_text()
    for picture in ("test_error.png", "label_error.png"):
        assert (out / picture).read_bytes().startswith(b"\x89PNG")
    other = compare(*into, "--lower", "0", "--upper", "12", "--runs", "1")
    assert "other data or settings" in other.error


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--method", "nothing:raw"], "randomizer must be one of"),
        (["--method", "a:b:c:d"], "must look like RANDOMIZER"),
        (["--method", "laplace,clip=maybe:raw"], "options: clip: Input should be a valid boolean"),
        (["--method", "laplace,width=3"], "options: width: Extra inputs are not permitted"),
        (["--method", "dp-sgd,clip=true"], "has no objective, head or options"),
        (["--method", "groups:raw"], "groups has no objective, head or options"),
        *(
            (["--method", f"rr-on-bins,prior_share={n}:raw"], f"prior_share={n} must lie above 0")
            for n in ("2", "1", "0", "-0.5")
        ),
        (["--method", "rr-on-bins:"], "must look like RANDOMIZER"),
        (["--method", "laplace,continuous=true:raw"], "no release is made of them"),
        (["--method", "rr-on-bins,continuous=true:as-published"], "no release is made of them"),
        (["--method", "laplace,continuous=1:as-published"], "no release is made of them"),
        (["--method", "laplace,continuous=true,points=9:as-published"], "no release is made of"),
        (["--method", "rr-on-bins:as-published:gamma"], "as-published has no head"),
        (["--epsilons", "0"], "--epsilons=0 must be numbers above 0"),
        (["--runs", "0"], "--runs=0 must be a whole number of at least 1"),
    ],
)
def test_bad_options_are_one_line(
    compare: Compare, tmp_path: Path, options: list[str], message: str
) -> None:
    into = ["--out", str(tmp_path / "out")]
    assert message in compare(*into, "--lower", "0", "--upper", "10", *options).error
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--method", "rr-on-bins"], "several labels are sent by one of auto, joint, split, separ"),
        (["--method", "joint:as-published"], "without options; compare randomizers on one label"),
        (["--baselines", "central"], "is about one label, and --label stands 2 times"),
    ],
)
def test_what_is_about_one_label_says_so(
    run_command: RunCommand, events: Path, tmp_path: Path, options: list[str], message: str
) -> None:
    data = ["--labels", str(events), "--features", str(events), "--out", str(tmp_path / "out")]
    labels = ["--label", "y:0:10", "--label", "id:0:600"]
    assert message in run_command(main, "compare", *data, *labels, *options).error
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_sums_over_groups_stand_beside_codes(compare: Compare, tmp_path: Path) -> None:
    ends = ["--lower", "0", "--upper", "10", "--runs", "1", "--epsilons", "0.5"]
    methods = ["--method", "groups", "--method", "rr-on-bins:raw"]
    done = compare("--out", str(tmp_path / "out"), *ends, *methods)
    assert done.code == 0, done
    table = pl.read_csv(tmp_path / "out" / "table.csv").rows_by_key("method", named=True)
    assert set(table) == {"true labels", "rr-on-bins · raw", "sums over groups"}
    lines = (tmp_path / "out" / "results.jsonl").read_text().splitlines()
    (sums,) = (r for r in map(json.loads, lines) if r["randomizer"] == "groups")
    # 480 codes at ε = 0.5 are worth 18 true labels; a line of one column is what sums tell best
    assert sums["test_mse"] < 0.5 * sums["constant_mse"]
    assert sums["label_mse"] is None
    assert table["sums over groups"][0]["test_mse_mean"] == pytest.approx(sums["test_mse"])


@pytest.mark.slow
def test_several_labels_are_one_comparison_with_their_bounds(
    run_command: RunCommand, events: Path, tmp_path: Path
) -> None:
    table = pl.read_parquet(events).with_columns(high=(pl.col("y") > 5).cast(pl.Int8))
    table.write_parquet(events)
    files = ["--labels", str(events), "--features", str(events), "--key", "id"]
    options = ["--out", str(tmp_path / "out"), "--epsilons", "4", "--runs", "1", "--workers", "1"]
    of_linear = ["--method", "split", "--set-training", "learner=linear"]
    compare = partial(run_command, main, "compare", *files, *options, *of_linear)
    done = compare("--label", "y:0:10", "--label", "high:0:1")
    assert done.code == 0, done
    assert "high: Test error" in done.out
    assert (
        "- true labels could not be run: objective='true' is for networks and trees alone"
        in done.out
    )
    other = compare("--label", "y:0:12", "--label", "high:0:1")
    assert "other data or settings" in other.error


@pytest.mark.slow
def test_methods_that_cannot_run_are_named_and_the_exit_code_tells(
    compare: Compare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1 and one line if none could, 3 if some could not; tried again, nothing of it is left."""
    refused, tried = {"two-point", "laplace"}, list[str]()

    def answer(
        jobs: Iterable[Job],
        data_set: dict[str, Any],
        workers: int,
        log: Path,
        on_result: Callable[[Job, dict[str, Any]], None],
    ) -> None:
        for job in jobs:
            tried.append(job.method.randomizer)
            figures = dict.fromkeys(("label_mse", "test_mse", "test_mae", "test_loss"), 1.0)
            name = job.method.randomizer
            failed = {"error": f"{name} does not fit"}
            on_result(job, failed if name in refused else {**figures, "constant_mse": 2.0})

    monkeypatch.setattr("labelveil.comparison.run.run_jobs", answer)
    into = ["--out", str(tmp_path / "out"), "--lower", "0", "--upper", "10"]
    failing = [*into, "--method", "two-point", "--method", "laplace:raw"]
    one, other = (f"{name} could not be run: {name.partition(' ')[0]} does not fit"
                  for name in ("two-point · auto", "laplace · raw"))  # fmt: skip
    assert compare(*failing).error == f"error: nothing to compare: {one}; {other}\n"
    some = compare(*failing, "--method", "rr-on-bins:raw", "--json")
    assert some.code == 3
    assert some.err == f"warning: {one}\nwarning: {other}\n"
    told = json.loads(some.out)
    assert told["failures"] == [one, other]
    assert {cell["method"] for cell in told["cells"]} == {"true labels", "rr-on-bins · raw"}
    assert f"- {one}" in (tmp_path / "out" / "table.md").read_text()
    refused.clear()
    tried.clear()
    every = compare(*failing, "--method", "rr-on-bins:raw")
    assert (every.code, every.err) == (0, "")
    assert set(tried) == {"two-point", "laplace"}  # what has results is not run again
    assert "could not be run" not in (tmp_path / "out" / "table.md").read_text()
    refused.add("true-labels")  # which nobody asked for
    reference = compare(*failing, "--out", str(tmp_path / "other"))
    assert reference.code == 0
    assert reference.err == "warning: true labels could not be run: true-labels does not fit\n"


def test_a_worker_that_dies_ends_the_comparison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dies = [sys.executable, "-c", "raise SystemExit(3)"]
    monkeypatch.setattr("labelveil.comparison.run.child_command", lambda module: dies)
    jobs = make_jobs([Method("auto")], [1.0], runs=2)
    with pytest.raises(WorkerFailed, match=r"died with exit code 3; its log is beside .*worker"):
        run_jobs(jobs, {}, 2, tmp_path / "worker", lambda job, answer: None)


def test_jobs_come_run_by_run_with_the_reference_first() -> None:
    methods = [Method("auto"), Method("rr-on-bins", "raw"), Method("auto")]
    jobs = make_jobs(methods, [0.5, 1.0], runs=2)
    assert len(jobs) == 2 * (1 + 2 * 2)
    assert [job.run for job in jobs] == sorted(job.run for job in jobs)
    assert jobs[0].method.objective == "true"
    published = Method("laplace", "as-published")
    assert make_jobs([*methods, published], [1.0], 1)[0].method.objective == "true"
    assert make_jobs([published], [1.0], 1)[0].method.objective == "as-published"
    assert all(Job.from_json(job.to_json()) == job for job in jobs)
    with pytest.raises(ConfigError, match="no method"):
        make_jobs([], [1.0], 1)


def test_methods_name_the_options_of_their_randomizers() -> None:
    method = Method.parse("laplace,continuous=true,clip=true:as-published")
    assert dict(method.options) == {"clip": True, "continuous": True}
    assert str(method) == "laplace, clip, continuous · as-published"
    assert str(Method.parse("rr-on-bins,prior_share=0.3")) == "rr-on-bins, prior_share 0.3 · auto"
    jobs = make_jobs([method], [0.05], runs=1)
    assert jobs[0].method.objective == "as-published"  # the reference learns as they do
    assert [Job.from_json(job.to_json()) for job in jobs] == jobs
    kept = {"epsilon": 1.0, "run": 0, "randomizer": "auto", "objective": "auto", "head": "auto"}
    assert Job.from_json(kept).method == Method("auto")  # results of earlier versions


def test_summaries_are_means_and_sample_deviations() -> None:
    base = {"randomizer": "auto", "objective": "auto", "head": "auto", "epsilon": 1.0}
    records = [
        {**base, "run": r, "label_mse": 1.0, "test_mse": v, "test_mae": v, "constant_mse": 9.0}
        for r, v in enumerate([1.0, 2.0, 6.0])
    ]
    (cell,) = summarise([*records, {**base, "run": 3, "error": "does not fit"}])
    assert cell.runs == 3
    assert cell.means["test_mse"] == pytest.approx(3.0)
    assert cell.deviations["test_mse"] == pytest.approx(np.std([1, 2, 6], ddof=1))


def test_figures_of_several_labels_stand_by_label(tmp_path: Path) -> None:
    """Each way to share ε is set beside separate messages, run by run."""
    base = {"objective": "auto", "head": "auto", "epsilon": 1.0}
    figures = {"test_mae": 1.0, "test_loss": 1.0, "constant_mse": 9.0}
    errors = {"separate": ([5.0, 7.0], [1.0, 1.0]), "joint": ([4.0, 7.0], [1.0, 3.0])}
    records = [
        {
            **base,
            "randomizer": name,
            "run": run,
            "labels": [
                {"name": label, "test_mse": mine[run], **figures}
                for label, mine in zip(("a", "b"), both, strict=True)
            ],
        }
        for name, both in errors.items()
        for run in (0, 1)
    ]
    cells = by_label(summarise(records))
    assert [*cells] == ["a", "b"]
    gains = {name: {one.method: one.means[GAIN] for one in each} for name, each in cells.items()}
    assert gains["a"]["joint · auto"] == pytest.approx(0.5)
    assert math.isnan(gains["a"]["separate · auto"])  # not lower than itself by 0 ± 0
    assert gains["b"]["joint · auto"] == pytest.approx(-1.0)
    every = [cell for each in cells.values() for cell in each]
    write_markdown(every, tmp_path / "table.md")
    text = (tmp_path / "table.md").read_text()
    assert "## a: Test error of the model" in text
    assert "| joint · auto | **0.5 ± 0.5** |" in text  # the standard error of the difference
    assert "randomized label" not in text
    assert text.count("separate · auto") == 2  # its error of each label
    write_csv(every, tmp_path / "table.csv")
    table = pl.read_csv(tmp_path / "table.csv")
    assert table["label"].to_list() == ["a", "a", "b", "b"]
    draw(every, tmp_path)
    assert (tmp_path / "test_error.png").read_bytes().startswith(b"\x89PNG")
    assert not (tmp_path / "label_error.png").exists()
