"""Labels parties that are made for an audit, and what is made of what they send; none is run."""

from __future__ import annotations

import json
import math
import tomllib
from contextlib import contextmanager, nullcontext
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import polars as pl
import pytest

from labelveil.audit.attacks.one_run import draw_secrets
from labelveil.audit.canaries import noises, party, sums_asked, worlds
from labelveil.audit.canaries.endpoint import Fetched, Part
from labelveil.audit.canaries.sums_asked import make_sums_world
from labelveil.audit.certificate.sums import parsed_question
from labelveil.audit.settings import CanarySettings
from labelveil.audit.verdict import Verdict
from labelveil.common.entropy import seeded_entropy
from labelveil.common.exact.noise import discrete_laplace
from labelveil.common.release.folder import CODES_FILE
from labelveil.common.release.manifest import Manifest
from labelveil.common.security.pilot_certificates import write_certificates
from labelveil.simulation.processes import StageFailed
from tests.common.release.releases import make_release
from tests.labelveil.audit.checks import FAIL, PASS, UNKNOWN

SETTINGS = CanarySettings(rows=1000, epsilon=0.5)


def configured(world: Any) -> dict[str, Any]:
    return tomllib.loads((world.folder / "label_party.toml").read_text())


def test_three_parties_have_one_population_and_a_label_less(tmp_path: Path) -> None:
    made = worlds.make_worlds(tmp_path, SETTINGS, "[evaluation]\noffered = true\n")
    whole, less, again, asked, small = made
    tables = {
        name: (pl.read_parquet(world.folder / "labels.parquet"),
               pl.read_parquet(world.folder / "population.parquet"))
        for name, world in (("whole", whole), ("less", less), ("again", again))
    }  # fmt: skip
    assert tables["whole"][1].equals(tables["less"][1])
    assert tables["whole"][0].equals(tables["again"][0])
    assert tables["whole"][0].height == 1000
    key = tables["whole"][1]["key"][0]
    assert tables["less"][0].height == 999
    assert tables["less"][0].equals(tables["whole"][0].filter(pl.col("key") != key))
    (first,) = tables["whole"][0].filter(pl.col("key") == key)["label"]
    assert first == 10.0  # the canary's
    assert set(tables["whole"][0]["label"].unique()) == {0.0, 10.0}
    assert tables["whole"][1]["category"].to_list()[:41] == [*worlds.CATEGORIES, "c00"]
    assert len(small) == worlds.HISTOGRAMS
    assert {world.secrets.size for world in small} == {worlds.HISTOGRAM_ROWS}
    assert len({world.folder for world in (whole, less, again, asked, *small)}) == 4 + len(small)
    names = {world.data_set for world in (whole, less, again, asked, *small)}
    assert len(names & {*worlds.NAMES}) == len(names) == 1
    config = configured(whole)
    assert config["privacy"] == {"epsilon": 0.5, "total_epsilon": 0.5}
    assert config["domain"] == {"lower": 0.0, "upper": 10.0}
    assert config["randomizer"] == {"name": "auto"}
    assert config["data"]["population"] == "population.parquet"
    assert config["server"]["requests_per_minute"] == 1_000_000
    assert "evaluation" not in config
    assert configured(asked)["privacy"]["total_epsilon"] == 10.5
    assert configured(asked)["evaluation"] == {"offered": True}
    assert configured(small[0])["privacy"]["total_epsilon"] == 1.5
    assert np.array_equal(whole.in_row_order, again.in_row_order)
    assert sorted(whole.in_row_order) == sorted(whole.secrets)
    whole.exchange_labels()
    other = pl.read_parquet(whole.folder / "labels.parquet")
    both = other.join(tables["whole"][0], on="key")
    assert (both["label"] + both["label_right"] == 10.0).all()


def test_several_labels_are_configured_each(tmp_path: Path) -> None:
    both = replace_settings(labels=2)
    made = worlds.make_worlds(tmp_path, both)
    config = configured(made.whole)
    assert config["label"] == [
        {"name": name, "lower": 0.0, "upper": 10.0} for name in ("label", "label2")
    ]
    assert "domain" not in config
    assert configured(made.questioned)["domain"] == {"lower": 0.0, "upper": 10.0}  # asked of one
    effort = worlds.make_worlds(tmp_path / "more", replace_settings(effort=2))
    assert len(effort.small) == 2 * worlds.HISTOGRAMS


def test_a_labels_party_is_run_by_its_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = worlds.make_worlds(tmp_path, SETTINGS).whole
    spent = [{"spent": {"epsilon": "1/2"}}, {"spent": None}, {"spent": {"epsilon": "1/4"}}]
    ran: list[list[str]] = []

    def run(program: str, command: list[str], folder: Path, log: Path) -> None:
        ran.append(command)
        assert (program, folder) == ("labelveil.label_party.__main__", world.folder)
        if command[-1] == "--refused":
            raise StageFailed("label_party release: no")
        log.write_text(json.dumps(spent) if command[0] == "budget" else "")

    monkeypatch.setattr(worlds, "run_party", run)
    assert world.release("--set", "a=1") is None
    assert world.release("--refused") == "label_party release: no"
    assert world.spent == Fraction(3, 4)
    config = ["--config", "label_party.toml"]
    assert ran == [
        ["release", *config, "--quiet", "--set", "a=1"],
        ["release", *config, "--quiet", "--refused"], ["budget", *config, "--json"],
    ]  # fmt: skip


def test_sums_are_asked_for_three_times_and_refusals_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the same events: two questions about groups, and none between them."""
    monkeypatch.setattr(sums_asked, "EVENTS", 1000)
    files = write_certificates(tmp_path / "certificates", days=1)
    world = make_sums_world(tmp_path / "sums", SETTINGS, files)
    assert configured(world)["privacy"] == {"epsilon": 0.5, "total_epsilon": 1.0}
    assert configured(world)["data"]["population"] == "submitted"
    sent: list[tuple[Any, ...]] = []

    class Refused(grpc.RpcError):
        code, details = lambda self: grpc.StatusCode.INTERNAL, lambda self: "no"

    def submit(*submitted: Any) -> None:
        sent.append(submitted)
        if submitted[0] == "3":
            raise Refused

    monkeypatch.setattr(world, "serving", nullcontext)
    client = SimpleNamespace(submit=submit)
    monkeypatch.setattr(sums_asked, "connected", lambda connection: nullcontext(client))
    assert world.submit() == ["stored", "stored", "INTERNAL: no"]
    assert [epoch for epoch, *_ in sent] == ["1", "2", "3"]
    assert len({keys for _, keys, _, _ in sent}) == len({check for _, _, check, _ in sent}) == 1
    assert len(sent[0][1]) == 16 * 1000
    first, second, third = (question for *_, question in sent)
    assert second == b""
    assert first != third
    for question in (first, third):
        assert parsed_question(question, 1000).bounds == (0.0, 10.0)
    refused = {"data.epoch=2": f"no room in {world.folder}/store of {world.folder.name}"}
    monkeypatch.setattr(world, "release", lambda flag, epoch: refused.get(epoch))
    assert world.release_all() == ["released", "no room in /store of ", "released"]
    folder = world.folder / "store" / "releases" / world.data_set / "1"
    folder.mkdir(parents=True)
    (folder / CODES_FILE).write_bytes(b"sums")
    assert world.sent == b"sums"


def replace_settings(**changed: Any) -> CanarySettings:
    return SETTINGS.model_copy(update=changed)


MANIFEST, KEYS, CODES = make_release(400, points=2, randomizer="auto", epsilon=1.0)


def fetched(sent: bytes, manifest: Manifest = MANIFEST) -> Fetched:
    return Fetched(manifest.to_bytes(), b"", (Part(KEYS, sent),))


def test_two_starts_draw_noise_of_their_own() -> None:
    secrets = draw_secrets(400)
    rng = np.random.default_rng(0)
    channel = MANIFEST.channels[0]
    first, second = (
        bytes(channel.sample(secrets, rng.integers(0, 2**63, 400).astype(np.uint64) * 2).tolist())
        for _ in range(2)
    )
    sent = secrets, fetched(first), fetched(second)
    found = party.cold_start_check(*sent)
    assert (found.verdict, found.bound, found.found) == (PASS, 0.0, "The two outputs differ.")
    same = party.cold_start_check(secrets, fetched(first), fetched(first))
    assert (same.verdict, same.bound) == (FAIL, math.inf)
    assert same.found.startswith("Both drew the noise of rows:")
    assert party.stretches_check(secrets, fetched(first), fetched(first)).verdict is FAIL
    assert party.stretches_check(*sent).verdict is PASS
    told = party.one_run_check(*sent)
    assert (told.verdict, told.claimed) == (PASS, pytest.approx(1.0, abs=1e-6))
    right = int((np.frombuffer(first, np.uint8) == secrets).sum())
    assert f"400 labels were secret bits; {right} of 400 guesses" in told.tried
    raw = party.one_run_check(secrets, fetched(bytes(secrets.tolist())), fetched(second))
    assert raw.verdict is FAIL
    assert party.order_check(np.sort(secrets), *sent[1:]).verdict is FAIL


class World:
    """A labels party of which nothing is run."""

    def __init__(self, spent: list[Fraction], refusal: str | None, served: bytes = CODES) -> None:
        self._spent, self._refusal, self._served = iter(spent), refusal, served
        self.asked: list[Any] = []

    @property
    def spent(self) -> Fraction:
        return next(self._spent)

    def release(self, *options: str) -> str | None:
        self.asked.append(options)
        return self._refusal

    def exchange_labels(self) -> None:
        self.asked.append("exchanged")

    @contextmanager
    def serving(self) -> Any:
        yield self


ONE = Fraction(1)


@pytest.mark.parametrize(
    ("spent", "refusal", "verdict"),
    [
        ([ONE, ONE], "no budget", PASS),
        ([ONE, ONE], None, FAIL),
        ([ONE, 2 * ONE], "no budget", FAIL),
        ([ONE / 2, ONE / 2], "no budget", FAIL),
        ([2 * ONE, 2 * ONE], "no budget", FAIL),
    ],
)
def test_a_release_is_charged_once_and_a_second_refused(
    spent: list[Fraction], refusal: str | None, verdict: Verdict
) -> None:
    world: Any = World(spent, refusal)
    found = party.budget_check(world, fetched(CODES))
    assert (found.verdict, found.claimed) == (verdict, 1.0)
    assert world.asked == [("--epoch", "2")]
    assert found.found.startswith(f"Charged {float(spent[0]):g}, {float(spent[1]):g} after")
    assert ("was refused" in found.found) is (refusal is not None)
    assert found.bound == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize(("more", "verdict"), [(0, PASS), (1, PASS), (2, FAIL)])
def test_a_manifest_claims_no_more_than_was_charged(more: int, verdict: Verdict) -> None:
    """But for the last place of a channel's ε, which is rounded up."""
    data = json.loads(MANIFEST.to_bytes())
    data["privacy"]["total"]["epsilon"] = str(1 + Fraction(more, 1 << 50))
    sent = fetched(CODES, Manifest.model_validate(data))
    world: Any = World([ONE, ONE], "no budget")
    assert party.budget_check(world, sent).verdict is verdict


@pytest.mark.parametrize(
    ("same", "refusal"), [(True, "released already"), (False, "released already"), (True, None)]
)
def test_a_label_that_changes_is_frozen(
    monkeypatch: pytest.MonkeyPatch, same: bool, refusal: str | None
) -> None:
    answer = fetched(CODES)
    later = answer if same else fetched(CODES[::-1])

    @contextmanager
    def connected(connection: Any) -> Any:
        yield SimpleNamespace(fetch=lambda: later)

    monkeypatch.setattr(party, "connected", connected)
    world: Any = World([ONE], refusal)
    found = party.frozen_check(world, answer)
    assert found.verdict is (PASS if same else FAIL)
    assert world.asked == ["exchanged", ()]
    how = "the same" if same else "others"
    said = f" ({refusal})" if refusal else ""
    assert found.found == f"The bytes are {how}; 1 is charged in all{said}."


def test_releases_are_made_until_one_is_refused() -> None:
    def released(*refusals: str | None) -> Any:
        return party.released_check([World([], refusal) for refusal in refusals])  # type: ignore[misc]

    assert released(None, None).found == "All 2 were released."
    refused = released(None, "error: no", None)
    assert (refused.verdict, refused.found) == (FAIL, "error: no")


def test_canaries_cost_as_many_starts_as_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(party, "cpu_seconds", lambda run: 2.0)
    usual = party.canary_cost(CanarySettings(rows=10_000))
    assert usual == pytest.approx(2 * (52 + 12 + 8 + 0.6))
    assert party.canary_cost(CanarySettings(rows=10_000, effort=3)) - usual == pytest.approx(80)


def known_noise(scale: int, parties: int, seed: int) -> list[Any]:
    """Parties whose histograms have noise that is drawn here, about known secrets."""
    made, (manifest, _, _) = [], make_release(200)
    for at in range(parties):
        secrets = np.arange(200) % 2
        counts = np.array([100, 0, 0, 0, 100])
        entropy = seeded_entropy(seed + at).source("noise")
        noisy = counts + discrete_laplace(Fraction(scale), 5, entropy)
        stated = {"noisy_counts": noisy.tolist(), "scale": "16"}
        prior = manifest.prior.model_copy(update=stated)
        made.append(SimpleNamespace(
            secrets=secrets, manifest=manifest.model_copy(update={"priors": [prior]})
        ))  # fmt: skip
    return made


def test_noise_of_histograms_is_what_labels_leave() -> None:
    right = noises.histograms_check(known_noise(16, 30, 100), 1)
    assert right.verdict is PASS
    assert right.tried.startswith("30 data sets of 200 known labels were released.")
    assert "in histograms of 5 cells of scale 16" in right.found
    assert noises.histograms_check(known_noise(5, 30, 100), 1).verdict is FAIL
    none = known_noise(16, 1, 0)
    manifest = none[0].manifest
    decoded = manifest.prior.model_copy(update={"noise": "randomized-response"})
    none[0].manifest = manifest.model_copy(update={"priors": [decoded]})
    found = noises.histograms_check(none, 1)
    assert (found.verdict, found.found) == (
        UNKNOWN, "Histograms are decoded from the codes: they have no noise of their own.",
    )  # fmt: skip


class Queried:
    """A party that answers a query with counts and noise of a stated scale."""

    def __init__(self, scale: float, seed: int, stated: float | None = None) -> None:
        self.categories = worlds.categories(1000)
        self.secrets = np.arange(1000) // 40 % 2
        self._scale, self._stated = scale, stated or scale
        self._rng = np.random.default_rng(seed)
        self.asked: list[tuple[str, ...]] = []

    def noise(self, size: int) -> Any:
        q = math.exp(-1 / self._scale)
        return self._rng.geometric(1 - q, size) - self._rng.geometric(1 - q, size)

    def answer(self, *arguments: str) -> dict[str, Any]:
        self.asked.append(arguments)
        epsilon = {"epsilon": "1/10"}
        if arguments[0] == "top-k":
            noisy = np.bincount(self.categories) + self.noise(40)
            order = np.argsort(-noisy)
            leaders = [{"category": worlds.CATEGORIES[at], "users": int(noisy[at])} for at in order]
            return {
                "noise": {"scale": str(Fraction(self._stated))},
                "leaders": leaders,
                "guarantee": epsilon,
            }
        table = np.zeros((41, 8), dtype=np.int64)
        np.add.at(table, (self.categories, 7 * self.secrets), 1)
        variance = 1 / (2 * math.sinh(0.5 / self._stated) ** 2)
        parts = [(["category"], table.sum(axis=1)), (["label"], table.sum(axis=0)),
                 (["category", "label"], table.ravel())]  # fmt: skip
        measured = [
            {"columns": columns, "variance": variance,
             "noisy_counts": (counts + self.noise(counts.size)).tolist()}
            for columns, counts in parts
        ]  # fmt: skip
        return {"measurements": measured, "guarantee": epsilon}


def test_noise_of_leaders_and_tables_is_taken_off_true_counts() -> None:
    def known(scale: float, stated: float | None = None, effort: int = 1) -> tuple[Any, int]:
        """As many parties as are asked, and one more."""
        asked = range(worlds.QUERIED * effort + 1)
        return [Queried(scale, seed, stated) for seed in asked], effort

    right = noises.leaders_check(*known(20.0))
    assert right.verdict is PASS
    assert right.tried.startswith(f"{worlds.QUERIED} times `top-k` named all 40 categories")
    assert right.found.endswith("Stated scales spend 0.1 of ε = 0.1.")
    more = noises.leaders_check(*known(20.0, effort=2))
    assert more.tried.startswith(f"{2 * worlds.QUERIED} times")
    world: Any = Queried(20.0, 0)
    noises.leaders_check([world], 1)
    assert world.asked == [("top-k", "--by=category", "--categories=categories.txt", "--k=40")]
    assert noises.leaders_check(*known(19.0)).verdict is FAIL  # pays for less than it spends
    assert noises.leaders_check(*known(5.0, 20.0)).verdict is FAIL
    right = noises.tables_check(*known(60.0))
    assert right.verdict is PASS
    assert right.tried.startswith(f"{worlds.QUERIED} synthetic tables")
    assert right.found.endswith("Stated scales spend 0.1 of ε = 0.1.")  # three tables of 2/60
    more = noises.tables_check(*known(60.0, effort=2))
    assert more.tried.startswith(f"{2 * worlds.QUERIED} synthetic tables")
    assert noises.tables_check(*known(59.0)).verdict is FAIL
    assert noises.tables_check(*known(15.0, 60.0)).verdict is FAIL
