"""The neutral command line, `labelveil`: what belongs to neither party."""

from __future__ import annotations

from typing import NoReturn

from labelveil.common.command_line import Command, program, run

app = program(
    "Simulate both parties on one machine, compare methods, prepare what both need.",
    {
        "demo": Command(
            "labelveil.commands.demo:demo",
            "Simulate both parties on data that a dependency carries; write a report.",
            "Examples: labelveil demo; labelveil demo visits --epsilon 2",
            kept="half a run is left in --out; the same command starts over",
        ),
        "simulate": Command(
            "labelveil.commands.simulate:simulate",
            "Run both parties on this machine and score the model with the true labels.",
            "Example: labelveil simulate --labels sales.parquet --features clicks.parquet"
            " --key click_id --label amount --lower 0 --upper 400 --epsilon 1 --out out/sales",
            kept="half a run is left in --out; run it again with --overwrite",
        ),
        "compare": Command(
            "labelveil.commands.compare:compare",
            "Compare ways to randomize labels and to learn from them, by the models they give.",
            "Example: labelveil compare --labels sales.parquet --features sales.parquet"
            " --label amount --lower 0 --upper 400 --method auto --method rr-on-bins:raw --runs 3"
            " --out out/comparison",
            kept="results so far are kept in --out, run it again to go on",
            details="Exit code 3 if some methods could not run, which are named; 1 if none could.",
        ),
        "certificates": Command(
            "labelveil.commands.certificates:certificates",
            "Make certificates for tests and pilots.",
            "Example: labelveil certificates --out certificates --label-host labels.example.com",
            details=(
                "Writes a small authority's certificate, a certificate and a key for each party, "
                "and the secret under which both hash their event keys, unless that is there "
                "already: it is kept, and so is a pair of keys to sign with. A real deployment "
                "brings its own authority: here one command sees both parties' keys, and the "
                "authority's key is forgotten, so that nothing can be renewed or revoked."
            ),
        ),
        "audit": Command(
            "labelveil.commands.audit:audit",
            "Check the privacy claim from outside: certificate, attacks, verdicts.",
        ),
        "accounting": Command(
            "labelveil.commands.accounting:accounting",
            "What many releases cost together, by every method; how to divide a budget.",
        ),
    },
)


def main() -> NoReturn:
    run(app)
