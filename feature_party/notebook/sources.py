"""A release's public facts, in whatever form somebody holds them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelveil.common.arrays import Floats, with_nan
from labelveil.common.errors import ConfigError, DataError
from labelveil.common.exact.channel import FiniteChannel
from labelveil.common.randomizers import Message, Randomizer
from labelveil.common.randomizers.message.private_labels import PrivateEvents, PrivateLabels
from labelveil.common.release.manifest import Manifest, manifest_in
from labelveil.common.release.table import Release, SentLabel
from labelveil.feature_party.learning.problem import LabelProblem
from labelveil.feature_party.learning.several_labels import view_of
from labelveil.feature_party.notebook.clear_labels import ClearLabels

_ROUNDS = 300

Source = (
    Release
    | SentLabel
    | Manifest
    | PrivateLabels
    | ClearLabels
    | Randomizer
    | FiniteChannel
    | LabelProblem
    | Path
    | str
)
"""What says how labels were randomized; a path is that of a release's folder."""


def problem_of(source: Source, codes: NDArray[Any] | None = None) -> LabelProblem:
    """Take the facts from a source; codes to learn from tell its prior more than a histogram does.

    ``ConfigError`` if it says nothing of a channel, or of a prior where there are no codes.
    """
    match source:
        case LabelProblem():
            return source
        case ClearLabels():
            return source.problem
        case Path() | str():
            return problem_of(manifest_in(Path(source)), codes)
        case Release():
            return problem_of(source.manifest, codes)
        case SentLabel():
            return _seen(source.release.manifest.message, source.name, codes)
        case Manifest() | PrivateEvents() if len(source.names) > 1:
            name = source.names[0]
            raise ConfigError(
                f"an event has the labels {', '.join(source.names)}; name one, such as"
                f" lv.read_release(FOLDER)[{name!r}] or lv.randomize_events(…)[{name!r}], whose"
                " .codes are that label's"
            )
        case Manifest():
            return _seen(source.message, source.names[0], codes)
        case PrivateLabels():
            return _seen(source.events.message, source.name, codes)
        case Randomizer():
            return LabelProblem.from_channel(source.channel, source.prior, source.loss.name)
        case FiniteChannel():
            if codes is None:
                raise ConfigError("a channel alone says nothing of the labels; give the release")
            sent = check_codes(codes, source)
            if not sent.size:
                raise DataError("there are no codes to learn from")
            return LabelProblem.from_channel(source, prior_of_codes(source, sent))
    raise ConfigError(
        f"{type(source).__name__} says nothing of how labels were randomized; give a release, its"
        " folder, what lv.randomize_labels returned, or a channel"
    )


def _seen(message: Message, label: str, codes: NDArray[Any] | None) -> LabelProblem:
    """One label, seen with no counts of messages, or with those that its codes stand for."""
    view = view_of(message, label)
    if codes is None:
        return view.problem
    first = np.unique(view.codes, return_index=True)[1]  # a message of each of its codes
    sent = first[check_codes(codes, view.problem)]
    return view_of(message, label, np.bincount(sent, minlength=view.codes.size)).problem


def prior_of_codes(channel: FiniteChannel, codes: NDArray[Any]) -> Floats:
    """(k,) likeliest distribution of labels, by expectation maximisation from an even one."""
    seen = np.bincount(codes, minlength=channel.outputs.size) / max(codes.size, 1)
    likelihood = channel.probabilities
    prior = np.full(channel.inputs.size, 1 / channel.inputs.size)
    for _ in range(_ROUNDS):
        prior = prior * (likelihood @ (seen / (prior @ likelihood)))
    return np.asarray(prior / prior.sum())


def check_codes(codes: Any, problem: LabelProblem | FiniteChannel) -> NDArray[np.int64]:
    """(n,) codes as integers; ``DataError`` if they are not whole numbers below the number of
    outputs."""
    values = np.asarray(with_nan(codes))
    if values.ndim != 1 or values.dtype.kind not in "iufb" or not np.all(values == np.rint(values)):
        raise DataError("codes must be a column of whole numbers, as a release holds them")
    whole = values.astype(np.int64)
    most = problem.outputs.size
    if whole.size and not 0 <= whole.min() <= whole.max() < most:
        wrong = whole[(whole < 0) | (whole >= most)][0]
        raise DataError(f"code {wrong} must lie in 0 … {most - 1}, the channel's outputs")
    return whole
