"""Models on privatized labels as scikit-learn estimators (needs ``scikit-learn``)."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from numbers import Integral
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelveil.common.arrays import Floats, with_nan
from labelveil.common.config.load import checked
from labelveil.common.errors import ConfigError, DataError

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.validation import (
        assert_all_finite,
        check_consistent_length,
        check_is_fitted,
        column_or_1d,
        validate_data,
    )
except ImportError as error:
    raise ImportError(
        "LabelDPRegressor and LabelDPClassifier need scikit-learn, which is not installed; run: pip"
        " install scikit-learn"
    ) from error

if TYPE_CHECKING:
    import polars as pl

    from labelveil.common.randomizers.message.questions import Question
    from labelveil.feature_party.groups.model import SumsModel
    from labelveil.feature_party.learning.problem import LabelProblem
    from labelveil.feature_party.model.model import Model, Predictions
    from labelveil.feature_party.notebook.sources import Source


@dataclass(eq=False, repr=False)
class _LabelDPEstimator(BaseEstimator):  # type: ignore[misc]
    """Training and prediction for both estimators.

    Parameters
    ----------
    channel
        How labels were randomized: a release, its folder, what ``lv.randomize_labels`` returned,
        one label of what ``lv.randomize_events`` did, a randomizer or a channel. It may be given to
        :meth:`fit` instead.
    head, learner, ensemble, epochs
        As in ``[training]``; ``auto`` is the default training.
    columns
        What the cells of columns mean, by their names, as in ``[data.columns]``:
        ``{"amount": "number 1,234.5"}``; the others are found.
    random_state
        Chooses folds and initial weights: a number, or as in scikit-learn None or a
        ``numpy.random.RandomState``, of which every :meth:`fit` draws one.

    Attributes
    ----------
    model_
        The trained model.
    labels_
        (m,) labels that :meth:`predict_distribution` is about.
    n_features_in_, feature_names_in_
        As of every scikit-learn estimator.
    """

    channel: Source | None = None
    _: KW_ONLY
    head: str = "auto"
    learner: str = "auto"
    ensemble: int | str = "auto"
    epochs: int | str = "auto"
    columns: Mapping[str, str] | None = None
    random_state: int | np.random.RandomState | None = 0

    def fit(self, X: Any, y: Any = None, channel: Source | None = None) -> Self:
        """Train on privatized labels.

        Parameters
        ----------
        X
            (n, …) features: of pandas, Polars or Arrow, with text and categories as they are, or an
            array.
        y
            (n,) codes in the rows' order, which have type uint16; or, instead of them, what holds
            codes and channel: what ``lv.randomize_labels`` returned, or a release of a submitted
            population; or several of these, as of several rounds, or of ``lv.clear_labels``, in the
            rows' order; or sums over groups, of ``lv.group_sums``, of one question or several; or
            sums and codes of other events, in the rows' order.
        channel
            As the parameter of the estimator, which it replaces.

        Raises
        ------
        ConfigError, DataError
            If there is no channel, or codes are none of its outputs.
        """
        from labelveil.feature_party.config.sections import DataSection, TrainingSection
        from labelveil.feature_party.training.events import TrainingSetup
        from labelveil.feature_party.training.in_memory import Prepared
        from labelveil.feature_party.training.run import train

        table = self._table(X, reset=True)
        if any(map(_is_sums, given := y if isinstance(y, list | tuple) else [y])):
            self.model_: Model | SumsModel = self._fit_sums(table, given, channel)
            return self
        problem, codes = self._facts(y, self.channel if channel is None else channel)
        check_consistent_length(table, codes)
        wanted = {name: getattr(self, name) for name in ("head", "learner", "ensemble", "epochs")}
        wanted |= {"seed": seed_of(self.random_state), "checkpoint": False}
        section = checked(TrainingSection, wanted, keywords=True)
        data = checked(DataSection, {"columns": self.columns or {}}, keywords=True)
        setup = TrainingSetup(section, data)
        self.model_ = train(Prepared.of_table(table, codes, problem), setup)
        self.labels_: Floats = self.model_.support.values
        return self

    def _fit_sums(self, table: pl.DataFrame, given: Sequence[Any], channel: Any) -> SumsModel:
        """Learn from sums and, if there are any, codes of other events, in one likelihood."""
        from labelveil.feature_party.config.sections import DataSection
        from labelveil.feature_party.groups.model import SumsModel

        if any(_is_sums(each) and each.question.squares for each in given):
            raise ConfigError("squares tell how good a model is, and teach none: learn from sums")
        rows, sums, sent, facts, first = [], [], [], [], 0
        for each in given:
            if _is_sums(each):
                sums.append(each)
                size = len(each.question)
                rows.append(np.arange(first, first + size))
            else:
                facts.append(self._facts(each, self.channel if channel is None else channel))
                size = facts[-1][1].size
                sent.append(np.arange(first, first + size))
            first += size
        if first != table.height:
            raise DataError(
                f"X has {table.height:,} rows, and the sums and codes are about {first:,} events;"
                " give the features of these, in the order of the answers"
            )
        codes = None
        if facts:
            problem, joined = facts[0] if len(facts) == 1 else self._joined(facts)
            codes = problem, joined.astype(np.int64)
            table = table[np.concatenate([*rows, *sent])]
        stated = checked(DataSection, {"columns": self.columns or {}}, keywords=True).stated
        return SumsModel.fit(
            table, sums, codes=codes, stated=stated, seed=seed_of(self.random_state)
        )

    def ask(self, X: Any, strata: int = 16) -> Question:
        """Say what to ask of further events, whose labels this model has not learned from.

        ::

            first = lv.randomize_labels(y_first, lower=0, upper=1000, epsilon=1)
            model = lv.LabelDPRegressor().fit(X_first, first)
            question = model.ask(X_rest)
            rest = lv.randomize_labels(y_rest, lower=0, upper=1000, epsilon=1, question=question)
            model.fit(pd.concat([X_first, X_rest]), [first, rest])

        Each label is read in one round alone, and costs its ε whatever is asked. The question tells
        whoever answers it the events' strata, that is roughly what is predicted of each.

        Parameters
        ----------
        X
            (n, …) features of the further events.
        strata
            Classes of like predictions, 1 … 32, each with a channel of its own.

        Raises
        ------
        ConfigError
            If labels are two values, for which nothing better can be asked.
        """
        from labelveil.feature_party.learning.questions import ask

        predicted = self.predict_distribution(X)
        model = cast("Model", self.model_)  # one of sums predicts no distribution
        return ask(model.problem, model.support, lambda some: [predicted[some]], strata)

    def predict_distribution(self, X: Any) -> Floats:
        """Return (n, m) probabilities of the labels :attr:`labels_`.

        Raises
        ------
        ConfigError
            If the model learned from sums over groups, or decoded labels served it best: neither
            predicts a distribution.
        """
        distributions = self._predicted(X).distributions
        if self.model_.problem is None:
            raise ConfigError(
                "sums over groups teach which labels are expected, not their distribution: learn"
                " from codes; lv.ask_groups(X, model=model) asks for further sums"
            )
        if distributions is None:
            raise ConfigError(
                "this model predicts no distribution: labels decoded without bias served it best;"
                " choose a head, such as gaussian"
            )
        return distributions

    def _facts(self, codes: Any, channel: Any) -> tuple[LabelProblem, NDArray[np.uint16]]:
        from labelveil.common.release.table import Release
        from labelveil.feature_party.notebook.clear_labels import ClearLabels
        from labelveil.feature_party.notebook.sources import check_codes, problem_of

        release = getattr(codes, "release", codes)  # of one label of a release
        if isinstance(release, Release) and release.manifest.content.key_bytes:
            raise ConfigError(
                "the release's rows are in the order of its keys; `feature-party labels` brings its"
                " codes in the order of the features"
            )
        if isinstance(codes, list | tuple) and codes and all(hasattr(c, "codes") for c in codes):
            return self._joined([self._facts(each, channel) for each in codes])
        if hasattr(codes, "codes"):
            own = channel is None or isinstance(codes, ClearLabels)
            channel, codes = codes if own else channel, codes.codes
        if codes is None:
            raise ValueError("requires y to be passed, but the target y is None: give codes")
        # nullable and Arrow types as NumPy's own, which scikit-learn would make floats of
        vector = column_or_1d(np.asarray(with_nan(codes)), warn=True)
        assert_all_finite(vector)
        if vector.dtype != np.uint16:
            raise DataError(
                f"y has type {vector.dtype}, and codes have uint16: give what lv.randomize_labels"
                " returned, never true labels; y.astype('uint16') if these are a release's codes"
            )
        if channel is None:
            raise ConfigError(
                "codes alone say nothing of how labels were randomized; give channel, a release"
            )
        problem = problem_of(channel, vector)
        return problem, check_codes(vector, problem).astype(np.uint16)

    @staticmethod
    def _joined(
        rounds: list[tuple[LabelProblem, NDArray[np.uint16]]],
    ) -> tuple[LabelProblem, NDArray[np.uint16]]:
        """The facts of several rounds together, whose codes lie one behind the other's."""
        from labelveil.feature_party.learning.problem import first_codes
        from labelveil.feature_party.learning.several_releases import join_problems

        problems, codes = zip(*rounds, strict=True)
        first = first_codes(problems)
        if first[-1] > 1 << 16:
            raise ConfigError(f"{first[-1]:,} codes in all rounds must be at most 65,536")
        moved = [own + start for own, start in zip(codes, first[:-1], strict=True)]
        problem = join_problems(problems, [float(own.size) for own in codes])
        return problem, np.concatenate(moved).astype(np.uint16)

    def _table(self, X: Any, *, reset: bool = False) -> pl.DataFrame:
        import polars as pl

        from labelveil.feature_party.tables import collect_table

        if hasattr(X, "to_batches") or isinstance(X, pl.LazyFrame):  # Arrow's have other columns
            X = collect_table(X)
        named = hasattr(X, "columns")
        if named and len(names := [*X.columns]) > len(set(names)):
            twice = next(name for name in names if names.count(name) > 1)
            times = names.count(twice)
            raise DataError(f"X has {times} columns of the name {twice!r}; name each once")
        checked = validate_data(
            self,
            with_nan(X),
            reset=reset,
            skip_check_array=named,
            **({} if named else {"dtype": np.float64, "ensure_all_finite": "allow-nan"}),
        )
        if named:
            return collect_table(X)
        return pl.DataFrame({f"x{i}": column for i, column in enumerate(checked.T)})

    def _predicted(self, X: Any) -> Predictions:
        from labelveil.feature_party.model.drift import check_cells

        check_is_fitted(self)
        table, encoder = self._table(X), self.model_.encoder
        encoded = encoder.encode(table)
        check_cells(encoder, table)
        return self.model_.distributions(encoded)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.target_tags.required = True
        tags.non_deterministic = False
        return tags


def _is_sums(given: Any) -> bool:
    from labelveil.common.mechanisms.group_sums import PrivateSums

    return isinstance(given, PrivateSums)


def seed_of(random_state: Any) -> int:
    """A seed of 31 bits from what scikit-learn calls a random state."""
    if random_state is None or isinstance(random_state, np.random.RandomState):
        return int(check_random_state(random_state).randint(1 << 31))
    if not isinstance(random_state, Integral) or random_state < 0:
        raise ConfigError(
            f"random_state={random_state!r:.100} must be a whole number >= 0, None or a RandomState"
        )
    return int(random_state)


class LabelDPRegressor(RegressorMixin, _LabelDPEstimator):  # type: ignore[misc]
    """Regression on labels that stay private: codes in, expected labels out.

    ::

        model = lv.LabelDPRegressor().fit(X, codes, channel="release")
        model.predict(X_new)
        model.score(X_held_out, codes_held_out)  # R² of the true labels, estimated from codes

    Parameters, attributes and :meth:`fit` are those of the default training; in pipelines and
    cross-validation ``channel`` is given to the constructor and codes are the target.
    """

    def predict(self, X: Any) -> Floats:
        """Return (n,) expected labels: medians, where the release is judged by absolute loss.

        Raises
        ------
        DataError
            If no cell of a column is what the model was trained with in it.
        """
        return self._predicted(X).points

    def score(self, X: Any, y: ArrayLike) -> float:
        """Estimate R² = 1 − E[(t − f)²]/Var(t) of the true labels t from codes y of unseen rows.

        With u the decoding of least noise (``lv.decoded_labels``, ``low-variance``) and c the
        prior's mean, mean (f − c)(2u − f − c) over Var(t) under the prior. It is right on average,
        so that few codes may give more than 1, which is warned of with its standard error.
        ``feature-party evaluate`` gives an interval.
        """
        from labelveil.feature_party.notebook.targets import decode_targets

        points = self.predict(X)
        problem, codes = self._facts(y, self.model_.problem)
        decoded = decode_targets(problem, codes.astype(np.int64), "low-variance").targets
        gains = (points - problem.mean) * (2 * decoded - points - problem.mean)
        explained, error = gains.mean() / problem.deviation**2, np.inf
        if gains.size > 1:
            error = gains.std(ddof=1) / np.sqrt(gains.size) / problem.deviation**2
        if explained > 1:
            warnings.warn(
                f"R² is estimated as {explained:.2f} ± {error:.2f}, and cannot be above 1: so much"
                f" is the noise in {gains.size:,} codes; score more of them together",
                stacklevel=2,
            )
        return float(explained)


class LabelDPClassifier(ClassifierMixin, _LabelDPEstimator):  # type: ignore[misc]
    """Classification on labels that stay private: codes in, probabilities of the classes out.

    For two labels, or a few that were named as values. Use it as :class:`LabelDPRegressor`.

    Attributes
    ----------
    classes_
        (k,) labels, ascending.
    """

    def fit(self, X: Any, y: Any = None, channel: Source | None = None) -> Self:
        """Train on privatized labels; parameters as of :class:`LabelDPRegressor`.

        Raises
        ------
        ConfigError
            If labels are places on a range or sums over groups, and as :class:`LabelDPRegressor`
            does.
        """
        self._table(X, reset=True)
        if any(map(_is_sums, y if isinstance(y, list | tuple) else [y])):
            raise ConfigError("sums over groups teach expected labels: use LabelDPRegressor")
        problem, _ = self._facts(y, self.channel if channel is None else channel)
        if not problem.discrete:
            raise ConfigError(
                f"{problem.values.size} labels from {problem.grid[0]:g} to {problem.grid[-1]:g} are"
                " places on a range; use LabelDPRegressor, or name the values when randomizing"
            )
        super().fit(X, y, channel)
        whole = problem.values.astype(np.int64)
        self.classes_ = whole if np.array_equal(whole, problem.values) else problem.values
        return self

    def predict_proba(self, X: Any) -> Floats:
        """Return (n, k) probabilities of the classes."""
        return self.predict_distribution(X)

    def predict(self, X: Any) -> NDArray[Any]:
        """Return (n,) likeliest classes."""
        check_is_fitted(self)
        return np.asarray(self.classes_[self.predict_proba(X).argmax(axis=1)])

    def score(self, X: Any, y: ArrayLike) -> float:
        """Estimate the accuracy on true labels from codes y of unseen rows, without bias."""
        from labelveil.feature_party.learning.decoding import decoder

        places = self.predict_proba(X).argmax(axis=1)
        problem, codes = self._facts(y, self.model_.problem)
        decoded = decoder(problem, np.eye(problem.values.size)[problem.value_of]).values
        return float(np.mean(decoded[codes, places]))
