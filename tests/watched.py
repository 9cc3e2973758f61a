"""Many epochs through both parties: priors paid for after drift alone, against one every epoch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from labelveil.common.release.manifest import Manifest
from labelveil.common.release.table import write_release
from labelveil.common.security.new_keys import write_secret
from labelveil.feature_party.config.sections import FeaturePartyConfig
from labelveil.label_party.config.sections import LabelPartyConfig
from labelveil.label_party.release.run import run_release
from labelveil.label_party.release.watch import release_new
from labelveil.label_party.store.release_store import Store, is_release
from tests.feature_party.learn import prepare, train

KEY, LABEL = "event", "amount"


@dataclass(frozen=True)
class Arm:
    """What one way of paying for priors came to.

    Errors are mean squares on held-out events with true labels: of the one model of all epochs, and
    of the training events' mean.
    """

    manifests: list[Manifest]
    test_mse: float
    constant_mse: float

    @property
    def paid(self) -> list[int]:
        """Numbers of the epochs that paid for a prior."""
        return [number for number, one in enumerate(self.manifests) if one.prior_paid]

    @property
    def prior_epsilon(self) -> float:
        """ε spent on priors and tests, summed over the epochs (an event's is that of its own)."""
        return sum(part.epsilon for one in self.manifests for part in one.guarantees[:-1])


def write_epochs(folder: Path, epochs: Sequence[pl.DataFrame]) -> None:
    """Write one file of labels an epoch, the features of all, and a secret."""
    (folder / "labels").mkdir(parents=True)
    for number, table in enumerate(epochs):
        table.select(KEY, LABEL).write_parquet(folder / "labels" / f"{number:03}.parquet")
    pl.concat(epochs).drop(LABEL).write_parquet(folder / "features.parquet")
    write_secret(folder / "key")


def label_config(folder: Path, arm: str, **sections: dict[str, object]) -> LabelPartyConfig:
    """Disjoint epochs of ``folder``, in a store of their own for each arm."""
    values = {
        "data": {"labels": folder / "labels" / "{epoch}.parquet", "key": KEY, "label": LABEL},
        "keys": {"secret_file": folder / "key"},
        "store": {"directory": folder / arm},
        **sections,
    }
    values["privacy"] = {"epochs": "disjoint", **sections["privacy"]}
    return LabelPartyConfig.model_validate(values)


def run_arm(
    folder: Path,
    arm: str,
    truth: pl.DataFrame,
    training: dict[str, object],
    report: Callable[[str], None] = lambda line: None,
    **sections: dict[str, object],
) -> Arm:
    """Release every epoch as ``arm`` says, ``watch`` or ``daily``, and train one model on all.

    ``truth`` has the columns ``event`` and ``amount``, ``sections`` are the labels party's.
    """
    config = label_config(folder, arm, **sections)
    folders, manifests = released(config, folder, arm, report)
    settings = FeaturePartyConfig.model_validate(
        {
            "data": {"key": KEY},
            "keys": {"secret_file": folder / "key"},
            "training": training,
        }
    )
    prepared = prepare(folders, folder / "features.parquet", settings)
    model = train(prepared, settings)
    labels = prepared.table.select(KEY).join(truth, on=KEY, maintain_order="left")
    true = labels[LABEL].clip(*config.labels[0].bounds).to_numpy()
    held = prepared.holdout
    predicted = model.predict(prepared.table[held])["prediction"].to_numpy()
    constant = true[prepared.training].mean()
    return Arm(
        manifests,
        float(np.mean((predicted - true[held]) ** 2)),
        float(np.mean((constant - true[held]) ** 2)),
    )


def released(
    config: LabelPartyConfig,
    folder: Path,
    arm: str,
    report: Callable[[str], None] = lambda line: None,
) -> tuple[list[Path], list[Manifest]]:
    """Release every epoch, and write it as the features party keeps it."""
    if arm == "watch":
        release_new(config, lambda outcome: report(outcome.manifest.epoch), quiet=True)
    else:
        for path in sorted((folder / "labels").iterdir()):
            report(run_release(config.at(path.stem), quiet=True).manifest.epoch)
    return fetched(config, folder / f"{arm}-fetched")


def fetched(config: LabelPartyConfig, folder: Path) -> tuple[list[Path], list[Manifest]]:
    """Write each release as the features party keeps it."""
    store, folders, manifests = Store(config.store.directory), [], []
    with store.open_ledger() as ledger:
        for charge in filter(is_release, ledger.charges(config.data.data_set)):
            release = store.open_release(charge)
            keys, codes = release.read(0, release.rows)
            write_release(folder / charge.epoch, release.manifest_bytes, keys, codes)
            folders.append(folder / charge.epoch)
            manifests.append(release.manifest)
    return folders, manifests
