"""Sums of a labels party: doubles that misbehave are caught, and the real software passes."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from labelveil.audit.canaries import sums
from labelveil.audit.canaries.planting import Planted, draw
from labelveil.audit.canaries.sums import Summed
from labelveil.audit.canaries.sums_asked import (
    EPOCHS,
    SUMS,
    SumsWorld,
    ask_for_sums,
    make_sums_world,
)
from labelveil.audit.certificate.sums import parsed_question
from labelveil.audit.settings import CanarySettings, Planting
from labelveil.audit.verdict import Check, Verdict
from labelveil.common.entropy import system_entropy
from labelveil.common.exact.noise import discrete_laplace_each
from labelveil.common.release.question import encode_question
from labelveil.common.security.pilot_certificates import write_certificates

pytestmark = pytest.mark.statistical


@dataclass
class Double:
    """A labels party in this process; a fault replaces one of its parts."""

    planted: Planted
    question: bytes
    charged: float = 2.0  # for all epochs
    endings: tuple[str, ...] = ("released", "released", "refused")
    tells: bool = False  # whether a refusal does, what labels are
    freezes: bool = True
    keeps_noise: bool = False
    settings: CanarySettings = field(default_factory=CanarySettings)
    other: bool = False  # whether its labels are not the planted ones
    state: str = "first"

    def submit(self) -> list[str]:
        return ["stored"] * len(EPOCHS)

    def copied(self, name: str) -> Double:
        made = Double(**{k: v for k, v in vars(self).items() if k != "summed"})
        if self.keeps_noise:
            made.__dict__["summed"] = self.summed
        return made

    def exchange_labels(self) -> None:
        self.other = True

    def release_all(self) -> list[str]:
        return [
            *self.endings[:-1],
            self.endings[-1] + " as labels are low" * (self.tells and self.other),
        ]

    def release(self, *arguments: str) -> None:
        self.state = "first" if self.freezes else "second"

    @property
    def spent(self) -> Fraction:
        return Fraction(self.charged)

    @property
    def sent(self) -> bytes:
        return self.state.encode()

    @cached_property
    def summed(self) -> Summed:
        asked = parsed_question(self.question, self.planted.keys.len())
        count = asked.widths.size
        scales = np.full(count, 10)
        noise = discrete_laplace_each(scales, 1, system_entropy().source("sums"))
        named = asked.groups[asked.groups < count]
        return Summed(
            self.planted,
            cast(Any, None),
            noise,
            scales.astype(np.float64),
            np.arange(count),
            np.bincount(named, minlength=count),
            np.arange(count) % 7,
        )


@pytest.fixture(scope="module")
def planted() -> tuple[Planted, bytes]:
    found = draw(Planting(events=8000, lower=0, upper=10))
    return found, encode_question(sums.ask(found, 21))


def checked(double: Double) -> list[Check]:
    return SUMS.checks(ask_for_sums(cast(SumsWorld, double)))


def failed(checks: list[Check]) -> set[str]:
    return {check.name for check in checks if check.verdict is not Verdict.PASS}


@pytest.mark.parametrize(
    ("fault", "name"),
    [
        ({}, set()),
        ({"charged": 1.0}, {"sums: an event is charged for every answer"}),
        ({"tells": True}, {"sums: refusals do not depend on labels"}),
        ({"freezes": False}, {"sums: updated labels"}),
        ({"keeps_noise": True}, {"sums: two cold starts differ"}),
        ({"endings": ("refused", "refused", "refused")}, {"sums"}),
    ],
)
def test_what_a_labels_party_does_wrong_with_sums_is_seen(
    planted: tuple[Planted, bytes], fault: dict[str, Any], name: set[str]
) -> None:
    assert failed(checked(Double(*planted, **fault))) == name


@pytest.mark.slow
def test_the_real_labels_party(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, repeatable: None
) -> None:
    files = write_certificates(tmp_path / "certificates", days=2)
    world = make_sums_world(tmp_path / "sums", CanarySettings(), files)
    checks = SUMS.checks(ask_for_sums(world))
    assert failed(checks) == set()
    assert [check.name for check in checks if not check.power_sentence] == []
    assert world.spent == 2
