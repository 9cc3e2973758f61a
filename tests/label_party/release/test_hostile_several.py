"""A manifest of several labels that claims too little, or says too much, is refused."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable
from copy import deepcopy
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from labelveil.common.entropy import Entropy
from labelveil.common.errors import ReleaseError
from labelveil.common.exact.channel import FiniteChannel, randomized_response_rows
from labelveil.common.guarantees import PureDP
from labelveil.common.release.manifest import Manifest
from labelveil.label_party.config.sections import LabelPartyConfig
from tests.common.release.releases import text_of
from tests.label_party.made_up import Kept, build_counted, numbered

Change = Callable[[dict[str, Any]], Any]


def message(division: str) -> dict[str, Any]:
    """The manifest of 400 events with two labels of few values, as JSON values."""
    stars = {"name": "stars", "kind": "category", "values": [0, 1, 2]}
    chosen = LabelPartyConfig.model_validate(
        {
            "data": {"labels": "none.csv"},
            "privacy": {"epsilon": 2.0, "division": division},
            "label": [stars, {"name": "kept", "kind": "binary"}],
        }
    )
    rows = np.arange(400)
    labels = np.column_stack([rows % 3, rows % 2]).astype(float)
    entropy = Entropy(hashlib.sha256(b"test").digest())
    plan = chosen.plan_message(len(labels))
    built = build_counted(numbered(labels), chosen, plan, entropy, Kept())
    found: dict[str, Any] = json.loads(built.to_bytes())
    return found


SPLIT, JOINT = message("split"), message("joint")


def read(data: dict[str, Any]) -> Manifest:
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return Manifest.from_bytes(text.encode())


def response(inputs: list[float], epsilon: float) -> dict[str, Any]:
    size = len(inputs)
    rows = randomized_response_rows(size, epsilon)
    return FiniteChannel(inputs, inputs, rows).to_json()


def all_of_epsilon_on_each(data: dict[str, Any]) -> None:
    """Channels of ε each, where a half of it is stated: the codes of one event say 2 ε."""
    for label, one in zip(data["labels"], data["randomizers"], strict=True):
        one["channel"] = response(label["grid"], 2.0)


def all_of_epsilon_on_each_stated(data: dict[str, Any]) -> None:
    """The same, with each of them rightly stated, and the total as if one of them counted."""
    all_of_epsilon_on_each(data)
    for label, one in zip(data["labels"], data["randomizers"], strict=True):
        spent = PureDP.of_channel(FiniteChannel.from_json(one["channel"], label["grid"]))
        one["guarantee"] = spent.to_json()
    data["privacy"]["total"] = spent.to_json()


def both_at_once(data: dict[str, Any]) -> None:
    """A change of either label alone says ε, and one of both says twice that."""
    grids = [label["grid"] for label in data["labels"]]
    cells = [(a / max(grids[0]), b / max(grids[1])) for a in grids[0] for b in grids[1]]
    total, rows = 1 << 64, []
    for a, b in cells:
        low = round(0.02 * np.exp(1.9 * (a + b)) * 2**60) * 16
        rows.append([total - low, low])
    distinct = sorted({tuple(row) for row in rows})
    (one,) = data["randomizers"]
    one["channel"] |= {
        "outputs": [0.0, 1.0],
        "rows": [text_of(row) for row in distinct],
        "row_of": [distinct.index(tuple(row)) for row in rows],
    }
    ratios = [Fraction(rows[i][z], rows[j][z]) for i, j in ((1, 0), (4, 0)) for z in (0, 1)]
    assert max(ratios) < Fraction(np.exp(2.0))  # one label alone is within the claim


def fewer_outputs_than_values(data: dict[str, Any]) -> None:
    """Rightly stated, but from two outputs nobody decodes how often each of three values is."""
    one, other = data["randomizers"]
    channel = FiniteChannel(
        data["labels"][0]["grid"], [0, 1], randomized_response_rows(2, 0.5), [0, 1, 1]
    )
    spent = PureDP.of_channel(channel)
    one |= {"channel": channel.to_json(), "guarantee": spent.to_json()}
    total = spent.exact_epsilon + Fraction(other["guarantee"]["epsilon"])
    data["privacy"]["total"] = PureDP.of(total).to_json()


def drift_of_two_labels(data: dict[str, Any]) -> None:
    """As if an earlier epoch had paid for the prior: a test is of one label."""
    in_force = {"epoch": "0", "manifest": "0" * 64, "rows": 9}
    data["drift"] = {"in_force": in_force, "test": None, "drifted": False}
    data["privacy"]["total"] = data["randomizers"][0]["guarantee"]


def thousands_of_points(data: dict[str, Any]) -> None:
    """Few bytes for a million cells, and for 2**80 of eight labels."""
    for label in data["labels"]:
        label["grid"] = [float(i) for i in range(1000)]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (all_of_epsilon_on_each, "the channel's weights give"),
        (all_of_epsilon_on_each_stated, "the parts add up to"),
        (lambda d: d["randomizers"].pop(), "exactly one prior and one randomizer"),
        (lambda d: d["priors"].pop(), "exactly one prior and one randomizer"),
        (lambda d: d["randomizers"][0]["labels"].append("kept"), "exactly one prior"),
        (lambda d: d["randomizers"][0].update(labels=["kept"]), "exactly one prior"),
        (lambda d: d["labels"][1].update(name="stars"), "two labels have one name"),
        (lambda d: d.update(format="labelveil-release/4"), "labelveil-release/1"),
        (lambda d: d["labels"].extend(deepcopy(d["labels"]) * 4), "at most 8"),
        (lambda d: d["randomizers"].reverse(), None),
        (lambda d: d["content"].update(code_bytes=2), "codes of 2 bytes for 6 outputs"),
        (lambda d: d["labels"][0].update(note=1), "labels.0.note"),
        (lambda d: d["randomizers"][0].update(name="unbiased"), "such codes"),
        (fewer_outputs_than_values, "such codes"),
        (lambda d: d["labels"][0]["grid"].extend([8.0, 9.0]), "for 5 cells"),
        (lambda d: d["priors"][0]["guarantee"].update(epsilon="1"), "decoded from the codes"),
        (lambda d: d.update(prior=d["priors"][0]), "prior"),
    ],
)
def test_a_manifest_of_own_channels(change: Change, said: str | None) -> None:
    data = deepcopy(SPLIT)
    assert read(data).codebooks.only.outputs == 6
    change(data)
    if said is None:  # another order of the channels is another, consistent claim
        assert read(data).codebooks.only.radices == (2, 3)
        return
    with pytest.raises(ReleaseError, match=said):
        read(data)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (both_at_once, "the channel's weights give"),
        (lambda d: d.update(priors=deepcopy(SPLIT["priors"])), "must be counted by one prior"),
        (lambda d: d["randomizers"][0]["labels"].reverse(), None),
        (lambda d: d["priors"][0]["noisy_counts"].pop(), "5 counts or rows for 6"),
        (lambda d: d["randomizers"][0]["channel"]["row_of"].append(0), "7 counts or rows for 6"),
        (thousands_of_points, "for 1,000,000"),
        (lambda d: d["priors"][0].update(scale="1"), "scale times epsilon"),
        (lambda d: d.update(drift={"in_force": {}}), "drift"),
        (drift_of_two_labels, "a release of 2 labels"),
    ],
)
def test_a_manifest_of_a_joint_channel(change: Change, said: str | None) -> None:
    data = deepcopy(JOINT)
    assert read(data).codebooks.only.cells.shape == (3, 2)
    change(data)
    if said is None:
        assert read(data).codebooks.only.groups[0].labels == (1, 0)
        return
    with pytest.raises(ReleaseError, match=said):
        read(data)


@pytest.mark.parametrize("data", [SPLIT, JOINT], ids=["split", "joint"])
def test_damaged_bytes_are_refused_or_change_nothing_that_is_exact(data: dict[str, Any]) -> None:
    """One byte of a thousand, each drawn anew, never ends in anything but a refusal."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    generator = random.Random(7)
    for _ in range(300):
        at = generator.randrange(len(text))
        touched = text[:at] + bytes([generator.randrange(256)]) + text[at + 1 :]
        try:
            found = Manifest.from_bytes(touched)
        except ReleaseError:
            continue
        assert found.total_guarantee == read(data).total_guarantee
