"""The pages as tests read them: blocks of code, links, headings; and how what they type is run."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, chdir, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl

from labelveil.children import child_environment
from labelveil.simulation.processes import serving
from tests.imports import ROOT
from tests.programs import run_program

MODULES = {
    "label-party": "label_party",
    "feature-party": "feature_party",
    "labelveil": "labelveil",
}
"""Our programs; what else a page types (make, pip, kubectl) is not run."""

_BLOCK = re.compile(r"^ *```(.*)\n((?:.*\n)*?) *```$", re.MULTILINE)


@dataclass(frozen=True)
class Page:
    """A page of the documentation, or of the repository's top folder."""

    path: Path

    def __str__(self) -> str:
        return str(self.path.relative_to(ROOT))

    @cached_property
    def text(self) -> str:
        return self.path.read_text("utf-8")

    @cached_property
    def prose(self) -> str:
        """The text without its blocks."""
        return _BLOCK.sub("", self.text)

    @cached_property
    def blocks(self) -> list[tuple[str, str]]:
        """Language and text of every block, in order; "" is a block that names none."""
        return _BLOCK.findall(self.text)

    @property
    def languages(self) -> set[str]:
        return {language for language, _ in self.blocks}

    @property
    def typed(self) -> list[str]:
        """Every command line after a prompt, in order."""
        return [line for kind, body in self.blocks if kind == "console" for line in typed(body)]

    @property
    def commands(self) -> list[list[str]]:
        """Every command line of ours as words, in blocks and between backticks."""
        named = [" ".join(found.split()) for found in re.findall(r"`([^`]+)`", self.prose)]
        words = [shlex.split(line) for line in (*self.typed, *named) if line.startswith(_STARTS)]
        return [found for found in words if len(found) > 1]

    @property
    def links(self) -> list[str]:
        """Every target of a link or a picture."""
        found = re.findall(r'\]\(([^)\s]+)\)|(?:src|srcset)="([^"]+)"', self.prose)
        return ["".join(either) for either in found]

    @property
    def anchors(self) -> set[str]:
        """What a link can point to within the page."""
        headings = re.findall(r"^#+ (.*)$", self.prose, re.MULTILINE)
        return {re.sub(r"[^\w -]", "", line).strip().lower().replace(" ", "-") for line in headings}


_STARTS = tuple(f"{program} " for program in MODULES)
_RUN = (*_STARTS, "torchrun ", "mv ")
_OF_A_SHELL = re.compile(r"[|&;<>$`*?~]")
PAGES = [
    Page(path)
    for path in (
        *sorted(ROOT.glob("*.md")),
        ROOT / "deploy" / "RUNBOOK.md",
        *sorted((ROOT / "docs").rglob("*.md")),
    )
]


def example_data(folder: Path) -> None:
    """Write the files that pages name: sales and landings, clicks, days, categories.

    A click's value follows its price and its page; half of the landings end in a sale.
    """
    random = np.random.default_rng(0)
    rows = 3000
    table = pl.DataFrame({
        "click_id": [f"c{row}" for row in range(rows)],
        "price": random.uniform(0, 400, rows).round(2),
        "page": random.choice(["home", "search", "offer"], rows),
    })  # fmt: skip
    sales = table.with_columns(
        amount=(pl.col("price") * random.uniform(0.8, 1.2, rows)).clip(0, 400),
        product=pl.Series(random.choice(["lamp", "chair", "table"], rows, p=[0.6, 0.3, 0.1])),
    ).select("click_id", "amount", "product")
    table.write_parquet(folder / "clicks.parquet")
    table[:100].write_parquet(folder / "new_clicks.parquet")
    orders = sales.select("click_id", "amount", returned=pl.col("amount") % 3 < 1)
    orders[::2].write_parquet(folder / "orders.parquet")
    sales[:1500].write_parquet(folder / "shoes.parquet")
    sales[1500:].with_columns(pl.col("amount") * 150).write_parquet(folder / "lamps.parquet")
    table.select("click_id").write_parquet(folder / "landings.parquet")
    sales[::2].write_parquet(folder / "sales.parquet")
    (folder / "products.txt").write_text("lamp\nchair\ntable\n")
    (folder / "sales").mkdir()
    for day in range(2):
        day_file = folder / "sales" / f"2024-06-0{day + 1}.parquet"
        sales[day * 1500 : day * 1500 + 1500].write_parquet(day_file)


def typed(block: str) -> list[str]:
    """Return the command lines after a block's prompts, without their comments."""
    lines = block.replace("\\\n", " ").splitlines()
    return [re.sub(r"\s+# .*", "", line[2:]) for line in lines if line.startswith("$ ")]


def type_line(line: str, folder: Path, path: str) -> tuple[int, str]:
    """Run a line in a folder, with programs found along a path; exit code and what was said."""
    program, *arguments = shlex.split(line)
    if program in MODULES and not _OF_A_SHELL.search(line):
        return run_program(MODULES[program], arguments, folder, path)
    done = subprocess.run(
        line, shell=True, cwd=folder, env=child_environment(PATH=path),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        check=False,
    )  # fmt: skip
    return done.returncode, done.stdout


@contextmanager
def terminal(folder: Path) -> Iterator[Callable[[str], None]]:
    """Yield what types a line into a shell in this folder; only our programs are run.

    A configuration that begins with its file's name is written there. A server listens on a free
    port of the loopback, where the lines after it find it, until the block is left. A line that
    fails is an ``AssertionError`` with what it said.
    """
    programs = folder / ".programs"
    programs.mkdir()
    for name, module in MODULES.items():
        start = f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -P -m {module} "$@"\n'
        (programs / name).write_text(start)
        (programs / name).chmod(0o755)
    path = os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]])
    places = {"labels.example.com": "localhost"}
    ports = iter((":50051", ":50052"))

    def run(line: str) -> None:
        here = line
        for place, stand_in in places.items():
            here = here.replace(place, stand_in)
        if named := re.match(r"# (\w+\.toml)\n", here):
            (folder / named[1]).write_text(here)
        if line.startswith("label-party serve"):
            told = next(ports)
            port = folder / f".port{told}"
            anywhere = ["--port-file", str(port), "--listen", "127.0.0.1:0"]
            anywhere += ["--set", "observability.listen=127.0.0.1:0"]  # pages run side by side
            arguments = [*shlex.split(line)[1:], *anywhere]
            server = serving(arguments, folder, folder / ".serve.log", port)
            places[told] = f":{until_done.enter_context(server)}"
        elif line.startswith(_RUN):
            code, said = type_line(here, folder, path)
            assert code == 0, f"{here}\n{said}"

    with ExitStack() as until_done:
        yield run


def run_page(
    page: Page,
    folder: Path,
    *languages: str,
    before: Sequence[str] = (),
    instead: Mapping[str, str] | None = None,
) -> None:
    """Run a page's blocks in order and in one folder; its Python is one notebook.

    ``instead`` is what is typed in the place of a line.
    """
    example_data(folder)
    cells: dict[str, object] = {}
    with terminal(folder) as run, chdir(folder):
        for line in before:
            run(line)
        for language, body in page.blocks:
            if language == "python" and language in languages:
                exec(compile(body, str(page), "exec"), cells)
            elif language == "console" and language in languages:
                for line in typed(body):
                    run((instead or {}).get(line, line))
            elif language == "toml" and "console" in languages:
                run(body)
