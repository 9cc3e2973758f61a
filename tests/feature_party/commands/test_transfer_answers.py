"""What commands print of releases that come and keys that go."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from labelveil.feature_party.client.submission import Population
from labelveil.feature_party.commands.submit import submitted
from labelveil.feature_party.config.labels_party import LabelsPartySection
from tests.feature_party.commands.stand_ins import (
    GROUPS,
    MATCHES,
    PIPELINE,
    ROUNDS,
    All,
    OfSums,
    ThroughRounds,
    invoke,
    refusal,
    written,
)
from tests.feature_party.worlds import World

pytestmark = pytest.mark.usefixtures("here")


def test_a_join_says_what_matched_and_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    shards = ["one"]
    joined = SimpleNamespace(matches=MATCHES, shards=shards, directory=Path("out"))
    monkeypatch.setattr(f"{PIPELINE}.learning.Learning.join", lambda self: joined)
    document = json.loads(invoke("join", "--out", "out", "--json"))
    assert document == {
        "release_rows": 3000, "feature_rows": 2500, "matched": 2400, "shards": 1,
        "directory": "out", "parties": [], "right_secrets": False, "unmatched": [],
    }  # fmt: skip
    said = invoke("join", "--out", "out").splitlines()
    assert said == [str(MATCHES), "1 shard in out; feature-party train starts from there"]
    shards *= 1200
    assert "\n1,200 shards in out;" in invoke("join", "--out", "out")
    assert invoke("join", "--out", "out", "--quiet") == ""


def test_a_fetch_says_what_came_and_what_it_took_the_place_of(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = world.release.manifest
    release: dict[str, Any] = {
        "manifest": manifest, "directory": Path("release"), "rows": 1500, "received": 1200,
        "seconds": 2.34, "replaced": None, "withdrawn": None,
    }  # fmt: skip
    fetched = [SimpleNamespace(**release)]
    configs = []

    def fetch(self: Any) -> list[Any]:
        configs.append(self.config)
        return fetched

    monkeypatch.setattr(f"{PIPELINE}.transfer.Transfer.fetch", fetch)
    (document,) = json.loads(invoke("fetch", "--json"))
    guarantee = document.pop("guarantee")
    assert guarantee["epsilon"] == "9/2"
    assert document == {
        "data_set": "sales", "epoch": "one", "rows": 1500, "events": 1500, "received": 1200,
        "seconds": 2.34, "directory": "release", "replaced": None, "withdrawn": None,
    }  # fmt: skip
    first, last = invoke("fetch").splitlines()
    assert first == (
        f"1,500 rows of 'sales', epoch 'one', in release (1,200 received, 2.3 s);"
        f" {manifest.total_guarantee}"
    )
    assert last == "next: feature-party train"
    fetched[0].replaced = ("sales", "zero")
    assert invoke("fetch").splitlines()[1] == (
        "it took the place of 'sales', epoch 'zero', which can be fetched again at no cost;"
        " [labels_party] epochs keeps several"
    )
    fetched[0].withdrawn = "wrong"
    assert invoke("fetch").splitlines()[1].endswith("which was withdrawn; train again")
    # of rounds those are fetched that were submitted, and the score
    written(ROUNDS)
    for epoch in ("day-1", "day-3"):
        Path("release", epoch).mkdir(parents=True)
        Path("release", epoch, "population.keys").touch()
    invoke("fetch")
    assert configs[-1].only_labels_party.epochs == ["day-1", "day-3"]


def test_a_fetch_of_sums_counts_events(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = SimpleNamespace(
        data_set="sales", epoch="one", sums=object(),
        population=SimpleNamespace(rows=1500),
        total_guarantee=world.release.manifest.total_guarantee,
    )  # fmt: skip
    done = SimpleNamespace(
        manifest=manifest, directory=Path("r"), rows=12, received=0, seconds=0.0, replaced=None,
        withdrawn=None,
    )  # fmt: skip
    monkeypatch.setattr(f"{PIPELINE}.transfer.Transfer.fetch", lambda self: [done])
    assert invoke("fetch").startswith("12 sums over 1,500 events of 'sales', epoch 'one', in r (0 ")


def test_a_question_of_a_file_goes_with_the_keys(sending: list[bytes]) -> None:
    Path("asked.bin").write_bytes(b"what?")
    named = ("--data-set", "sales", "--epoch", "one")
    document = json.loads(invoke("submit", *named, "--question", "asked.bin", "--json"))
    digest = Population(b"k" * 32, b"c").digest.hex()
    assert document == {
        "data_set": "sales", "epoch": "one", "rows": 2, "sha256": digest, "asked": True,
        "ending": "stored",
    }  # fmt: skip
    assert invoke("submit", *named) == (
        f"2 keys as the population of 'sales', epoch 'one': stored; SHA-256 {digest}\n"
    )
    assert sending == [b"what?", b""]
    assert "none.bin cannot be read" in refusal("submit", "--question", "none.bin")
    both = refusal("submit", "--question", "asked.bin", "--ask")
    assert both.startswith("--question asked.bin and --ask exclude each other")
    written(ROUNDS)
    rounds = refusal("submit", "--question", "asked.bin")
    assert "--question asked.bin and [rounds] shares=[0.5, 0.5] exclude" in rounds
    assert len(sending) == 2


def test_a_model_of_codes_asks_and_one_of_sums_does_not(
    sending: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    models = "labelveil.feature_party.model.several_labels.LabelModels.load"
    monkeypatch.setattr(models, lambda folder: folder)
    asked = f"{PIPELINE}.rounds.question_of"
    monkeypatch.setattr(asked, lambda models, config: f"what {models} asks".encode())
    said = invoke("submit", "--ask", "--model", "m")
    assert said.startswith("2 keys with a question as the population")
    assert sending == [b"what m asks"]
    monkeypatch.setattr("labelveil.feature_party.groups.saved.is_of_sums", lambda folder: True)
    assert "--ask is for models of codes, and that in m has learned from sums" in refusal(
        "submit", "--ask", "--model", "m"
    )
    assert len(sending) == 1


@pytest.mark.parametrize("text", [ROUNDS, GROUPS])
@pytest.mark.usefixtures("everything")
def test_of_rounds_the_next_is_submitted(
    text: str, of_sums: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    written(text)
    assert "epoch 'day-1': stored" in invoke("submit")
    (rounds,) = ThroughRounds.made
    assert type(rounds.stages) is (OfSums if text == GROUPS else All)
    assert of_sums == []


def test_what_was_submitted_is_said_in_a_line_and_as_values() -> None:
    party = LabelsPartySection(data_set="sales", epoch="one")
    document, line = submitted(party, Population(b"k" * 16 * 1200, b"c", b"what?"), "stored")
    assert line.startswith("1,200 keys with a question as the population of 'sales', epoch 'one':")
    assert (document["rows"], document["asked"], document["ending"]) == (1200, True, "stored")
    document, line = submitted(party, Population(b"k" * 16, b"c"), "stored")
    assert line.startswith("1 keys as the population of 'sales', epoch 'one': stored; SHA-256 ")
    assert (document["rows"], document["asked"]) == (1, False)
    assert submitted(party, Population(b"", b"c"), "no need")[1] == "nothing to submit: no need"
