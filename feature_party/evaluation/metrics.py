"""What a run's metrics say of the releases, and of a model that was trained on true labels."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common.errors import DataError
from common.release.manifest import Manifest


def nonprivate_metrics(path: Path) -> dict[str, float]:
    """Test errors of a model that was trained on true labels, from its metrics file.

    Raises
    ------
    DataError
        If the file cannot be read, or holds none.
    """
    try:
        metrics = json.loads(path.read_text(encoding="utf-8"))
        return {f"nonprivate_{name}": float(metrics[f"test_{name}"]) for name in ("mse", "mae")}
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{path} holds no test errors; evaluate the model trained on true labels with"
            " --true-labels first"
        ) from error


def release_metrics(manifests: Sequence[Manifest]) -> dict[str, Any]:
    """What releases state about themselves, under the names that metrics use.

    Of several epochs the last names the randomizer, and each ε is the largest of any.
    """
    last = manifests[-1]
    facts = {
        "randomizer": last.randomizer.name,
        "loss": last.randomizer.loss,
        "rows": sum(manifest.population.rows for manifest in manifests),
        "outputs": int(last.channel.outputs.size),
        "epsilon": max(manifest.privacy.requested_epsilon for manifest in manifests),
        "epsilon_prior": max(
            manifest.prior_guarantee.epsilon if manifest.prior_paid else 0.0
            for manifest in manifests
        ),
        "epsilon_labels": max(manifest.labels_guarantee.epsilon for manifest in manifests),
        "data_set": last.data_set,
        "epoch": last.epoch,
    }
    if len(manifests) > 1:
        facts["epochs"] = len(manifests)
        facts["priors_paid"] = sum(manifest.prior_paid for manifest in manifests)
    return facts
