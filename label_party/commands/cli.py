"""The command line ``label-party``: its commands, each a module that is imported when called."""

from __future__ import annotations

from labelveil.common.command_line import Command, program, run

app = program(
    "Hold sensitive labels; send one differentially private message about them.",
    {
        "init": Command(
            "labelveil.label_party.commands.init:init",
            "Write a commented configuration file.",
            "Example: label-party init --labels sales.parquet --key click_id --label amount"
            " --lower 0 --upper 400 --epsilon 1; label-party init --new-secret (the join secret"
            " alone, where labelveil certificates has not made one)",
        ),
        "doctor": Command(
            "labelveil.label_party.commands.doctor:doctor",
            "Check configuration, data, keys, certificates, address and budget; change nothing.",
            "Example: label-party doctor",
            details=(
                "Nothing is told of any row; how many keys match, label-party release --dry-run "
                "says."
            ),
        ),
        "release": Command(
            "labelveil.label_party.commands.release:release",
            "Build the one message for this data set and epoch, and charge the budget for it.",
            "Examples: label-party release; label-party release --epoch 2024-06-02;"
            " label-party release --epsilon 0.5 --set randomizer.name=rr-on-bins",
            kept="label-party budget shows what was paid for; run it again to go on",
            details=(
                "What is odd about the labels is said beforehand, on standard error. On a "
                "terminal the command then asks; without one it goes on, for a job that stops by "
                "itself tells of labels, too."
            ),
        ),
        "watch": Command(
            "labelveil.label_party.commands.watch:watch",
            "Release epochs as they arrive; pay for a new prior only when the labels have drifted.",
            "Examples: label-party watch --once --labels 'sales/{epoch}.parquet' --population"
            " 'clicks/{epoch}.parquet'; label-party watch --date sold_at --set"
            " privacy.epochs=disjoint",
            kept="label-party budget shows what was paid for; run it again to go on",
            details=(
                "The prior of the last release stays in force until a private test of an epoch's "
                "labels says that they no longer follow it. Every epoch spends the same epsilon: "
                "what the test leaves of the prior's part goes to the labels. Ends at ^C or "
                "SIGTERM, after the epoch it is at.\n\n"
                "Before an epoch is charged, what is odd about its labels is said on standard "
                "error. On a terminal the command then asks; without one it goes on, for an epoch "
                "that does not come tells of its labels, too."
            ),
        ),
        "plan": Command(
            "labelveil.label_party.commands.plan:plan",
            "Compare randomizers by the model they will give, without looking at a label.",
            "Examples: label-party plan --rows 500000 --epsilons 0.5,1,2 --plot plan.png;"
            " label-party plan --prior-release label_store/releases/sales/1;"
            " label-party plan --prior-file guess.csv --rows 100000",
        ),
        "serve": Command(
            "labelveil.label_party.commands.serve:serve",
            "Serve committed releases over mutual TLS until SIGTERM or ^C.",
            "Example: label-party serve --listen 0.0.0.0:50051",
            details="SIGHUP has it read its certificates again.",
        ),
        "budget": Command(
            "labelveil.label_party.commands.budget:budgets",
            "Show what every account may spend, who spent what, when, and what is left.",
        ),
        "status": Command(
            "labelveil.label_party.commands.status:show",
            "Show what was spent and released, who fetched what, who was refused, what expires.",
            "Example: label-party status --listen 127.0.0.1:9464",
        ),
        "withdraw": Command(
            "labelveil.label_party.commands.withdraw:withdraw",
            "Serve a release no more; it stays spent, and this cannot be taken back.",
            "Example: label-party withdraw 2024-06-01 --reason 'amounts were read in cents'",
            kept="label-party budget shows whether it is withdrawn; run it again to go on",
            details=(
                "A server over the same store refuses it at once, running fetches included, and "
                "tells the features party why. The latest release is then the newest that is not "
                "withdrawn."
            ),
        ),
        "backup": Command(
            "labelveil.label_party.commands.backup:backup",
            "Copy the ledger and all releases to one file, while they are served or built.",
            "Example: label-party backup --to /backups/labels-2024-06-01.tar",
            details=(
                "What is not as the ledger knows it is named, and the command ends with 1; all "
                "else is copied."
            ),
        ),
        "restore": Command(
            "labelveil.label_party.commands.backup:restore",
            "Make a store from a backup; what was released since must be stated, or it is spent"
            " twice.",
            "Examples: label-party restore labels.tar --nothing-since;"
            " label-party restore labels.tar --lost 2024-06-02 --lost 2024-06-03=0.5;"
            " label-party restore --nothing-since (no backup, the ledger alone is gone)",
            details=(
                "What is whole is taken; what is not stays spent, is named, and the command ends "
                "with 1. Without FILE, where there is no backup, the ledger is made of the "
                "releases that lie in the store."
            ),
        ),
        "top-k": Command(
            "labelveil.label_party.commands.top_k:top_k",
            "Release which categories lead by distinct users, and charge the budget for it.",
            "Examples: label-party top-k --by product --categories products.txt --k 10"
            " --epsilon 0.5; label-party top-k --by product --categories products.txt --adaptive"
            " --plot leaders.png; label-party top-k --by product --categories products.txt"
            " --stable --set privacy.total_delta=1e-6",
            kept="label-party budget shows what was paid for; run it again to go on",
            details=(
                "--k and --adaptive name them with noisy counts. --stable shows the whole set in "
                "front of a wide gap as it is, without counts, or nothing; its price does not "
                "grow with the set. --stable --k N names exactly N, without counts: the set in "
                "front of a gap near N, filled up or thinned out."
            ),
        ),
        "synthesize": Command(
            "labelveil.label_party.commands.synthesize:synthesize",
            "Release a synthetic table of categories and the binned label, and charge the budget"
            " for it.",
            "Examples: label-party synthesize --column product=products.txt --bins 5"
            " --out table.csv; label-party synthesize --column product=products.txt"
            " --column country=countries.txt --edges 0,1,10,400 --epsilon 0.5 --out table.parquet",
            kept="label-party budget shows what was paid for; run it again to go on",
            details=(
                'Every event is one record. Values that a list lacks count as "(other)". All '
                "events are in memory meanwhile: about 170 bytes each, and 16 more for every "
                "column."
            ),
        ),
    },
)


def main() -> None:
    run(app)
