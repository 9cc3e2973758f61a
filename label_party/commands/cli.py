"""The command line ``label-party``: options here, the work in a module of each command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from common.console import numbers, program, progress, run
from label_party.commands.options import (
    Certificate,
    ClientCa,
    ClientSan,
    Config,
    DataSet,
    Directory,
    Epoch,
    Epsilon,
    Key,
    Label,
    Labels,
    Listen,
    Loss,
    Lower,
    Population,
    PrivateKey,
    Randomizer,
    SecretFile,
    Settings,
    Total,
    Upper,
)
from label_party.commands.watch import watch
from label_party.config.sections import DEFAULT_CONFIG, load

app = program("Hold sensitive labels; send one differentially private message about them.")


@app.command(
    epilog="Example: label-party init --labels sales.parquet --key click_id --label amount"
    " --lower 0 --upper 400 --epsilon 1 --new-secret"
)
def init(
    config: Config = DEFAULT_CONFIG,
    labels: Labels = None,
    population: Population = None,
    key: Key = None,
    label: Label = None,
    data_set: DataSet = None,
    epoch: Epoch = None,
    lower: Lower = None,
    upper: Upper = None,
    epsilon: Epsilon = None,
    total_epsilon: Total = None,
    randomizer: Randomizer = None,
    loss: Loss = None,
    secret_file: SecretFile = None,
    store: Directory = None,
    listen: Listen = None,
    certificate: Certificate = None,
    private_key: PrivateKey = None,
    client_ca: ClientCa = None,
    client_san: ClientSan = None,
    signing_key: Annotated[
        Path | None, typer.Option(help="Ed25519 key that signs manifests, PEM.")
    ] = None,
    new_secret: Annotated[bool, typer.Option(help="Make the join secret, too.")] = False,
    new_signing_key: Annotated[bool, typer.Option(help="Make the signing key, too.")] = False,
    force: Annotated[bool, typer.Option(help="Overwrite an existing file.")] = False,
) -> None:
    """Write a commented configuration file."""
    from label_party.config.init_files import initialise

    values = {name: value for name, value in locals().items() if name not in _NOT_IN_FILE}
    values["directory"] = values.pop("store")
    for line in initialise(
        config, values, new_secret=new_secret, new_signing_key=new_signing_key, force=force
    ):
        typer.echo(line)


_NOT_IN_FILE = {"config", "new_secret", "new_signing_key", "force", "initialise"}


@app.command(
    epilog="Examples: label-party release; label-party release --epoch 2024-06-02;"
    " label-party release --epsilon 0.5 --set randomizer.name=rr-on-bins"
)
def release(
    config: Config = DEFAULT_CONFIG,
    settings: Settings = None,
    labels: Labels = None,
    population: Population = None,
    key: Key = None,
    label: Label = None,
    data_set: DataSet = None,
    epoch: Epoch = None,
    lower: Lower = None,
    upper: Upper = None,
    epsilon: Epsilon = None,
    total_epsilon: Total = None,
    randomizer: Randomizer = None,
    loss: Loss = None,
    secret_file: SecretFile = None,
    store: Directory = None,
    quiet: Annotated[bool, typer.Option(help="No progress bar, no summary.")] = False,
) -> None:
    """Build the one message for this data set and epoch, and charge the budget for it."""
    from label_party.commands.release import print_outcome
    from label_party.release.run import run_release

    overrides = {
        "data.labels": labels,
        "data.population": population,
        "data.key": key,
        "data.label": label,
        "data.data_set": data_set,
        "data.epoch": epoch,
        "domain.lower": lower,
        "domain.upper": upper,
        "privacy.epsilon": epsilon,
        "privacy.total_epsilon": total_epsilon,
        "randomizer.name": randomizer,
        "randomizer.loss": loss,
        "keys.secret_file": secret_file,
        "store.directory": store,
    }
    outcome = run_release(load(config, overrides, settings or ()), quiet=quiet)
    if not quiet:
        print_outcome(outcome)


app.command(
    epilog="Examples: label-party watch --once --labels 'sales/{epoch}.parquet' --population"
    " 'clicks/{epoch}.parquet'; label-party watch --date sold_at --set privacy.epochs=disjoint"
)(watch)


@app.command(
    epilog="Examples: label-party plan --rows 500000 --epsilons 0.5,1,2 --plot plan.png;"
    " label-party plan --prior-release label_store/releases/sales/1;"
    " label-party plan --prior-file guess.csv --rows 100000"
)
def plan(
    config: Config = DEFAULT_CONFIG,
    settings: Settings = None,
    epsilons: Annotated[str, typer.Option(help="Budgets to compare.")] = "0.5,1,2,4",
    prior_release: Annotated[
        Path | None, typer.Option(help="A release (or its manifest) whose noisy prior to use.")
    ] = None,
    prior_file: Annotated[
        Path | None, typer.Option(help="Public knowledge: a table with columns label, weight.")
    ] = None,
    raw_labels: Annotated[
        bool, typer.Option("--raw-labels", help="Use the labels themselves. The choice leaks.")
    ] = False,
    rows: Annotated[
        int | None,
        typer.Option(min=1, help="Number of events; default as submitted, or 20,000."),
    ] = None,
    loss: Loss = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the table to this picture.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, not a table.")] = False,
) -> None:
    """Compare randomizers by the model they will give, without looking at a label."""
    from common.randomizers.base import check_epsilon
    from label_party.commands.plan import check_plot, draw_plan, print_plan
    from label_party.release import plan as planning

    loaded = load(config, {"randomizer.loss": loss}, settings or ())
    events = planning.planned_rows(loaded, rows)
    knowledge = planning.choose_knowledge(loaded, prior_release, prior_file, raw_labels, events)
    budgets = numbers("--epsilons", epsilons)
    for epsilon in budgets:
        check_epsilon(epsilon)
    if plot is not None:
        check_plot(plot)
    with progress(quiet=as_json) as bar:
        task = bar.add_task("Comparing", total=len(budgets), note="")
        found = planning.make_plan(
            loaded, knowledge, budgets, lambda epsilon: bar.update(task, advance=1)
        )
    print_plan(found, as_json=as_json)
    if plot is not None:
        draw_plan(found, plot)


@app.command(epilog="Example: label-party serve --listen 0.0.0.0:50051")
def serve(
    config: Config = DEFAULT_CONFIG,
    settings: Settings = None,
    store: Directory = None,
    data_set: DataSet = None,
    listen: Listen = None,
    certificate: Certificate = None,
    private_key: PrivateKey = None,
    client_ca: ClientCa = None,
    client_san: ClientSan = None,
    port_file: Annotated[
        Path | None, typer.Option(help="Write the port here once requests are answered.")
    ] = None,
) -> None:
    """Serve committed releases over mutual TLS until SIGTERM or ^C."""
    from common.allocator import keep_freed_memory
    from label_party.monitoring import logs
    from label_party.monitoring import native_stderr as native_log
    from label_party.server import run as server
    from label_party.server.handshakes import Handshakes

    overrides: dict[str, Any] = {
        "store.directory": store,
        "data.data_set": data_set,
        "server.listen": listen,
        "server.certificate": certificate,
        "server.private_key": private_key,
        "server.client_ca": client_ca,
        "server.client_san": client_san,
    }
    loaded = load(config, overrides, settings or ())
    keep_freed_memory()
    handshakes = Handshakes()
    with native_log.captured(handshakes.read):
        logs.configure(loaded.server.log_level, loaded.server.log_format)
        server.serve(
            loaded,
            port_file=port_file,
            announce=lambda line: print(line, flush=True),
            handshakes=handshakes,
        )


@app.command(epilog="Example: label-party budget --json")
def budget(
    config: Config = DEFAULT_CONFIG,
    settings: Settings = None,
    store: Directory = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, not a table.")] = False,
) -> None:
    """Show what every data set may spend, who spent what, when, and what is left."""
    from label_party.commands.budget import print_account
    from label_party.store.account import account, restores

    loaded = load(config, {"store.directory": store}, settings or ())
    print_account(account(loaded), as_json, restores(loaded))


@app.command(epilog="Example: label-party backup --to /backups/labels-2024-06-01.tar")
def backup(
    to: Annotated[Path, typer.Option("--to", help="The file to write; it must not exist.")],
    config: Config = DEFAULT_CONFIG,
    settings: Settings = None,
    store: Directory = None,
    quiet: Annotated[bool, typer.Option(help="No progress bar, no summary.")] = False,
) -> None:
    """Copy the ledger and all releases to one file, while they are served or built."""
    from label_party.store.backup import run_backup

    made = run_backup(load(config, {"store.directory": store}, settings or ()), to, quiet=quiet)
    if not quiet:
        typer.echo(f"wrote {made.path}: {made.releases:,} releases, {made.size:,} bytes")


@app.command(
    epilog="Examples: label-party restore labels.tar --nothing-since;"
    " label-party restore labels.tar --lost 2024-06-02 --lost 2024-06-03=0.5"
)
def restore(
    file: Annotated[Path, typer.Argument(help="What label-party backup wrote.")],
    config: Config = DEFAULT_CONFIG,
    settings: Settings = None,
    store: Directory = None,
    data_set: DataSet = None,
    nothing_since: Annotated[
        bool, typer.Option("--nothing-since", help="State that nothing was released since.")
    ] = False,
    lost: Annotated[
        list[str] | None,
        typer.Option(
            metavar="EPOCH[:PURPOSE][=EPSILON]",
            help="State that this was released since and is gone: spent, never built again.",
        ),
    ] = None,
) -> None:
    """Make a store from a backup; what was released since must be stated, or it is spent twice."""
    from label_party.store.restore import parse_lost
    from label_party.store.restore import restore as restore_backup

    overrides = {"store.directory": store, "data.data_set": data_set}
    loaded = load(config, overrides, settings or ())
    stated = [parse_lost(loaded, text) for text in lost or ()]
    done = restore_backup(loaded, file, stated, nothing_since=nothing_since)
    typer.echo(f"restored the backup of {done.made_at}: {done.releases:,} releases")
    for name in done.counted:
        typer.echo(f"found in the store and counted as spent: {name}")


@app.command(
    name="top-k",
    epilog="Examples: label-party top-k --by product --categories products.txt --k 10"
    " --epsilon 0.5; label-party top-k --by product --categories products.txt --adaptive"
    " --plot leaders.png; label-party top-k --by product --categories products.txt --stable"
    " --set privacy.total_delta=1e-6",
)
def top_k(
    by: Annotated[str, typer.Option(help="Column of the label file with the category.")],
    categories: Annotated[
        Path, typer.Option(help="The public list of categories, one a line; others do not count.")
    ],
    config: Config = DEFAULT_CONFIG,
    settings: Settings = None,
    k: Annotated[int | None, typer.Option(min=1, help="How many categories to name.")] = None,
    adaptive: Annotated[
        bool, typer.Option("--adaptive", help="Let the widest gap decide how many.")
    ] = False,
    stable: Annotated[
        bool,
        typer.Option("--stable", help="Show the set before a wide gap, exact; needs total_delta."),
    ] = False,
    delta: Annotated[
        float | None, typer.Option(help="δ of --stable. Default: a tenth of total_delta.")
    ] = None,
    most: Annotated[
        int, typer.Option(min=1, help="The most that --adaptive or --stable may name.")
    ] = 20,
    user: Annotated[
        str | None, typer.Option(help="Column that tells users apart; the event's key otherwise.")
    ] = None,
    labels: Labels = None,
    data_set: DataSet = None,
    epoch: Epoch = None,
    epsilon: Epsilon = None,
    total_epsilon: Total = None,
    store: Directory = None,
    out: Annotated[Path | None, typer.Option(help="Write the released JSON here, too.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw a bar chart to this picture.")] = None,
) -> None:
    """Release which categories lead by distinct users, and charge the budget for it.

    --k and --adaptive name them with noisy counts. --stable shows the whole set in front of a wide
    gap as it is, without counts, or nothing; its price does not grow with the set.
    """
    from common.errors import ConfigError
    from label_party.commands.top_k import draw_top_k, print_top_k, write_copy
    from label_party.queries import top_k as leaders

    if adaptive + stable + (k is not None) != 1:
        raise ConfigError("give one of --k N, --adaptive and --stable, and not both")
    if stable and plot is not None:
        raise ConfigError("a stable set has no counts to draw; leave --plot or --stable out")
    overrides = {
        "data.labels": labels,
        "data.data_set": data_set,
        "data.epoch": epoch,
        "privacy.epsilon": epsilon,
        "privacy.total_epsilon": total_epsilon,
        "store.directory": store,
    }
    loaded = load(config, overrides, settings or ())
    if stable and delta is None:
        delta = loaded.privacy.total_delta / 10
    request = leaders.Request(by, k, most, categories, user, delta if stable else None)
    result = leaders.run_top_k(loaded, request)
    if out is not None:
        write_copy(result, out)
    print_top_k(result)
    if plot is not None:
        draw_top_k(result, plot)


@app.command(
    epilog="Examples: label-party synthesize --column product=products.txt --bins 5"
    " --out table.csv; label-party synthesize --column product=products.txt"
    " --column country=countries.txt --edges 0,1,10,400 --epsilon 0.5 --out table.parquet"
)
def synthesize(
    column: Annotated[
        list[str],
        typer.Option(
            metavar="NAME=FILE",
            help="A category column and its public list of values, one a line; repeatable.",
        ),
    ],
    config: Config = DEFAULT_CONFIG,
    settings: Settings = None,
    bins: Annotated[int, typer.Option(min=2, help="Bins of the label, equally wide.")] = 8,
    edges: Annotated[
        str | None, typer.Option(help="Ends of the bins instead, from lower to upper.")
    ] = None,
    order: Annotated[
        int, typer.Option(min=1, help="Agree on all sets of up to so many columns.")
    ] = 2,
    delta: Annotated[
        float | None, typer.Option(help="Spend (epsilon, delta) on Gaussian noise, in zCDP.")
    ] = None,
    labels: Labels = None,
    population: Population = None,
    data_set: DataSet = None,
    epoch: Epoch = None,
    epsilon: Epsilon = None,
    total_epsilon: Total = None,
    secret_file: SecretFile = None,
    store: Directory = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Write the table: .csv, .parquet, or .json with all that was released."),
    ] = None,
    quiet: Annotated[bool, typer.Option(help="No progress bar, no summary.")] = False,
) -> None:
    """Release a synthetic table of categories and the binned label, and charge the budget for it.

    Every event is one record. Values that a list lacks count as "(other)". All events are in memory
    meanwhile: about 170 bytes each, and 16 more for every column.
    """
    from label_party.commands.synthesize import print_synthetic, write_table
    from label_party.queries import synthetic_table as synthesis

    overrides = {
        "data.labels": labels,
        "data.population": population,
        "data.data_set": data_set,
        "data.epoch": epoch,
        "privacy.epsilon": epsilon,
        "privacy.total_epsilon": total_epsilon,
        "keys.secret_file": secret_file,
        "store.directory": store,
    }
    loaded = load(config, overrides, settings or ())
    request = synthesis.Request(
        columns=synthesis.named_lists(column),
        edges=synthesis.label_edges(loaded, bins, numbers("--edges", edges) if edges else None),
        order=order,
        delta=delta,
    )
    result = synthesis.synthesize(loaded, request, quiet=quiet)
    if out is not None:
        write_table(result, out)
    if not quiet:
        print_synthetic(result)


def main() -> None:
    """Entry point of the command."""
    run(app)
