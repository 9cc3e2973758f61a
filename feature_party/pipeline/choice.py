"""Which stages a run goes through: those of codes, or those of sums over groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from labelveil.common.release.folder import MANIFEST_FILE
from labelveil.common.release.manifest import manifest_in
from labelveil.feature_party.config.sections import FeaturePartyConfig, TrueLabels
from labelveil.feature_party.pipeline.rounds import Learner

ModelT = TypeVar("ModelT")


class RunStages(Learner[ModelT], Protocol[ModelT]):
    """What a command needs of the stages of a run, whatever its models learn from."""

    timings: dict[str, float]

    def warn(self, text: str) -> None: ...
    def final(self) -> ModelT:
        """The model of all releases, saved."""
        ...

    def predict(self, model: ModelT) -> object: ...
    def train_on_truth(self, folder: Path) -> Path: ...
    def check_asked(self, ask: Sequence[str], by: Sequence[str]) -> None:
        """``ConfigError`` if the labels party cannot be asked, or segments not be compared, so."""
        ...

    def evaluate(
        self,
        model: ModelT,
        nonprivate: Path | None = None,
        ask: Sequence[str] = (),
        by: Sequence[str] = (),
    ) -> Any:
        """Say how good a model is; writes metrics and report."""
        ...

    def summary(self, scores: Any) -> tuple[list[str], list[str]]:
        """Warnings, and what to print, of what :meth:`evaluate` returned."""
        ...

    @property
    def learned_words(self) -> str:
        """What was learned from, in a line."""
        ...

    def write_metrics(self, scores: Mapping[str, Any]) -> dict[str, Any]: ...


def learns_from_sums(config: FeaturePartyConfig) -> bool:
    """Whether a run asks for sums, or all releases that are here are of sums."""
    if config.groups.configured:
        return True
    there = [path for path in config.release_folders if (path / MANIFEST_FILE).is_file()]
    return bool(there) and all(manifest_in(p).sums for p in there)


def stages_of(
    config: FeaturePartyConfig, quiet: bool, truth: TrueLabels | None = None
) -> RunStages[Any]:
    """The stages of one run of the features party."""
    # each loads what it learns with, which the other does without
    if learns_from_sums(config):
        from labelveil.feature_party.pipeline.sums import SumStages

        return SumStages(config, quiet, truth=truth or TrueLabels())
    from labelveil.feature_party.pipeline.stages import Stages

    return Stages(config, quiet, truth=truth or TrueLabels())
