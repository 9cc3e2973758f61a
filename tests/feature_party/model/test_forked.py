"""A forked process has none of the threads that Polars began: it says so instead of waiting."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys
from multiprocessing import get_context

import labelveil  # before Polars: it sees each fork
import polars as pl

from labelveil.feature_party.model.encoding import Encoder
from labelveil.feature_party.tables import collect_table

_, used, method, generations, called = sys.argv
table = pl.DataFrame({"x": [1.0, 2.0, 3.0, 4.0]})
encoder = Encoder.fit(table) if used == "used" else None
if used == "used":  # what is large is computed by all threads
    large = pl.DataFrame({"x": range(1 << 18)}).with_columns(group=pl.col("x") % 1000)
    large.lazy().group_by("group").agg(pl.col("x").sum()).sort("x").collect()


def work(generations):
    if generations > 1:
        child = get_context("fork").Process(target=work, args=(generations - 1,))
        child.start()
        child.join()
        raise SystemExit(child.exitcode)
    if called == "encode":
        (encoder or Encoder.fit(table)).encode(table)
    else:
        collect_table(table.lazy().sort("x"))


if __name__ == "__main__":
    child = get_context(method).Process(target=work, args=(int(generations),))
    child.start()
    child.join()
    print("exit", child.exitcode)
"""


@pytest.fixture
def run(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)

    def run(*arguments):
        command = [sys.executable, "program.py", *arguments]
        ran = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=True
        )
        return ran.stdout.splitlines()[-1], ran.stderr

    return run


@pytest.mark.parametrize("called", ["encode", "collect"])
@pytest.mark.parametrize("generations", ["1", "2"])
def test_after_polars_was_used_a_fork_is_refused_in_one_line(run, generations, called):
    ended, said = run("used", "fork", generations, called)
    assert ended == "exit 1"
    assert said.count("RuntimeError: this process was forked after Polars was used") == 1


@pytest.mark.parametrize(("used", "method"), [("unused", "fork"), ("used", "spawn")])
def test_else_it_works(run, used, method):
    assert run(used, method, "1", "encode") == ("exit 0", "")
