"""Draw mutations, run the tests that reach them, print who survived: ``make mutants``.

Mutations are made in a copy of the tree, in ``build/mutants``, so that nobody's files change.
"""

from __future__ import annotations

import argparse
import math
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.imports import PACKAGES, ROOT
from tests.mutants.draw import Mutation, drawn, room
from tests.mutants.equivalent import EQUIVALENT
from tests.mutants.forked import COMPUTES, HANGS, pytest_in
from tests.mutants.reach import Measured, Reach

BUILD = ROOT / "build" / "mutants"


def copied(tree: Path) -> None:
    """Copy what git knows or would take; what is there already keeps its compiled files."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.check_output(listed, cwd=ROOT, text=True).split("\0")[:-1]
    wanted = {name for name in names if (ROOT / name).is_symlink() or (ROOT / name).is_file()}
    for path in tree.rglob("*.py"):
        if str(path.relative_to(tree)) not in wanted and not path.parent.is_symlink():
            path.unlink()
    for name in wanted:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).unlink(missing_ok=True)
        shutil.copy2(ROOT / name, tree / name, follow_symlinks=False)
    for command in (["init", "--quiet"], ["add", "--all"]):  # tests ask git what is ours
        subprocess.run(["git", *command], cwd=tree, check=True)


def sources(within: Sequence[str]) -> list[str]:
    """Return our own source files under some folders, or files; generated ones aside."""
    listed = ["git", "ls-files", "*.py"]
    return [
        path
        for path in subprocess.check_output(listed, cwd=ROOT, text=True).splitlines()
        if path.startswith(tuple(f"{package}/" for package in PACKAGES))
        and "_pb2" not in path
        and (not within or any(path == each or path.startswith(f"{each}/") for each in within))
    ]


def affordable(tests: Sequence[Measured], seconds: float) -> list[Measured]:
    """Return the quickest tests that take so long together, and at least one."""
    found: list[Measured] = []
    total = 0.0
    for test in tests:
        total += test.seconds
        if found and total > seconds:
            break
        found.append(test)
    return found


def noticed(mutation: Mutation, tests: Sequence[Measured], tree: Path) -> str | None:
    """Return which test fails in the mutated tree, or that it hangs; None if none does."""
    target = tree / mutation.path
    source = target.read_bytes()
    with tempfile.NamedTemporaryFile("w", encoding="utf-8") as chosen:
        chosen.write("\n".join(test.name for test in tests))
        chosen.flush()
        files = sorted({test.name.partition("::")[0] for test in tests})
        seen = {"LABELVEIL_CHOSEN": chosen.name, "PYTHONDONTWRITEBYTECODE": "1"}
        # compiled files are told from their sources' by size and seconds alone
        for compiled in (target.parent / "__pycache__").glob(f"{target.stem}.*"):
            compiled.unlink()
        try:
            target.write_bytes(mutation.applied(source))
            seconds = 60 + 4 * math.ceil(sum(test.seconds for test in tests))
            for _ in range(2):  # once more, lest a machine that stalls is taken for a hang
                code, said = pytest_in(tree, ["-x", *files], seen, seconds)
                if code != HANGS:
                    break
        finally:
            target.write_bytes(source)
    if code in (0, HANGS, COMPUTES):
        return "hangs" if code else None
    failed = [line for line in said.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failed[0] if failed else f"ends with {code}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="another seed draws other mutations")
    parser.add_argument("--count", type=int, default=400, help="how many, evenly over the rooms")
    parser.add_argument("--room", action="append", default=[], help="only this folder or file")
    parser.add_argument(
        "--seconds",
        type=float,
        default=40,
        help="of a processor for the tests near, and for those far",
    )
    parser.add_argument("--near", action="store_true", help="run no tests of other folders")
    parser.add_argument("--list", action="store_true", help="print what is drawn, run nothing")
    given = parser.parse_args()
    found = drawn(sources(given.room), ROOT, given.seed, given.count)
    if given.list:
        print(*found, sep="\n")
        return
    tree = BUILD / "tree"
    copied(tree)
    reach = Reach(tree, BUILD / "reach")
    survivors: list[str] = []
    count: Counter[tuple[str, str]] = Counter()
    for mutation in found:
        how, run = None, 0
        for tests in reach.of(mutation.path, mutation.line, near=given.near):
            runs = affordable(tests, given.seconds)
            run += len(runs)
            how = noticed(mutation, runs, tree) if runs else None
            if how:
                break
        known = EQUIVALENT.get((mutation.path, mutation.whole(ROOT)))
        end = "noticed" if how else "equivalent" if known else "survived"
        count[room(mutation.path), end] += 1
        print(f"{mutation}\n    {end} ({run} tests): {(how or known or '')[:120]}", flush=True)
        if end == "survived":
            survivors.append(f"{mutation}   ({run} tests)")
    print(f"\n{'room':32} {'drawn':>6} {'noticed':>8} {'survived':>9} {'equivalent':>11}")
    rooms = sorted({name for name, _ in count})
    for name in (*rooms, "all"):
        these = [
            sum(n for (at, each), n in count.items() if name in (at, "all") and each == end)
            for end in ("noticed", "survived", "equivalent")
        ]
        print(f"{name:32} {sum(these):6} {these[0]:8} {these[1]:9} {these[2]:11}")
    print("\nsurvivors", *survivors or ["none"], sep="\n")


if __name__ == "__main__":
    main()
