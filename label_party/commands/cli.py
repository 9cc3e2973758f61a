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
        ),
        "release": Command(
            "labelveil.label_party.commands.release:release",
            "Build the one message for this data set and epoch, and charge the budget for it.",
            "Examples: label-party release; label-party release --epoch 2024-06-02;"
            " label-party release --epsilon 0.5 --set randomizer.name=rr-on-bins",
            kept="label-party budget shows what was paid for; run it again to go on",
        ),
        "watch": Command(
            "labelveil.label_party.commands.watch:watch",
            "Release epochs as they arrive; pay for a new prior only when the labels have drifted.",
            "Examples: label-party watch --once --labels 'sales/{epoch}.parquet' --population"
            " 'clicks/{epoch}.parquet'; label-party watch --date sold_at --set"
            " privacy.epochs=disjoint",
            kept="label-party budget shows what was paid for; run it again to go on",
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
        ),
        "backup": Command(
            "labelveil.label_party.commands.backup:backup",
            "Copy the ledger and all releases to one file, while they are served or built.",
            "Example: label-party backup --to /backups/labels-2024-06-01.tar",
        ),
        "restore": Command(
            "labelveil.label_party.commands.backup:restore",
            "Make a store from a backup; what was released since must be stated, or it is spent"
            " twice.",
            "Examples: label-party restore labels.tar --nothing-since;"
            " label-party restore labels.tar --lost 2024-06-02 --lost 2024-06-03=0.5;"
            " label-party restore --nothing-since (no backup, the ledger alone is gone)",
        ),
        "top-k": Command(
            "labelveil.label_party.commands.top_k:top_k",
            "Release which categories lead by distinct users, and charge the budget for it.",
            "Examples: label-party top-k --by product --categories products.txt --k 10"
            " --epsilon 0.5; label-party top-k --by product --categories products.txt --adaptive"
            " --plot leaders.png; label-party top-k --by product --categories products.txt"
            " --stable --set privacy.total_delta=1e-6",
            kept="label-party budget shows what was paid for; run it again to go on",
        ),
        "synthesize": Command(
            "labelveil.label_party.commands.synthesize:synthesize",
            "Release a synthetic table of categories and the binned label, and charge the budget"
            " for it.",
            "Examples: label-party synthesize --column product=products.txt --bins 5"
            " --out table.csv; label-party synthesize --column product=products.txt"
            " --column country=countries.txt --edges 0,1,10,400 --epsilon 0.5 --out table.parquet",
            kept="label-party budget shows what was paid for; run it again to go on",
        ),
    },
)


def main() -> None:
    run(app)
