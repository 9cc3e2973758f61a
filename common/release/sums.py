"""A release of sums over groups, read with the question that they answer."""

from __future__ import annotations

import hashlib
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from labelveil.common.arrays import Integers
from labelveil.common.engine.shuffle import KEY_TYPE, count_repeated, match_keys, sort_keys
from labelveil.common.errors import ConfigError, DataError, PrivacyError, ReleaseError
from labelveil.common.files import file_errors
from labelveil.common.mechanisms.group_sums import NO_GROUP, GroupQuestion, NoisySums, PrivateSums
from labelveil.common.release.blocks import block_ranges, decode_sums
from labelveil.common.release.event_keys import hash_keys, read_secret, secret_check
from labelveil.common.release.folder import (
    POPULATION_FILE,
    QUESTION_FILE,
    check_question,
    withdrawn_reason,
)
from labelveil.common.release.manifest import Manifest, block_digest, manifest_in
from labelveil.common.release.question import read_question
from labelveil.common.release.rows import open_rows
from labelveil.common.release.sections import SumsSection


def read_sums(
    folder: str | Path, keys: Any = None, secret_file: str | Path | None = None
) -> PrivateSums:
    """Read and verify sums that were fetched, with what was asked.

    ::

        sums = lv.read_sums("release", table["key"], "join.key")
        model = lv.LabelDPRegressor().fit(table.drop("key"), sums)

    A release that its labels party has withdrawn is read, with a ``UserWarning`` that says why.

    Parameters
    ----------
    folder
        Of the release, which the population was submitted with.
    keys
        (n,) keys of events, in the order in which the sums are wanted to be about them; an event
        that was not submitted is in no group. By default the submitted events in their order.
    secret_file
        The secret that keys are hashed with.

    Raises
    ------
    ReleaseError, DataError, ConfigError
        If the release is of codes, a file is missing or damaged, the question is another than was
        answered, or a submitted event is not among the keys.
    """
    folder = Path(folder)
    if (reason := withdrawn_reason(folder)) is not None:
        warnings.warn(f"the release in {folder} was withdrawn: {reason}", stacklevel=2)
    manifest = manifest_in(folder)
    noisy = answered(folder, manifest)
    answer = PrivateSums(noisy, _sums(folder, manifest))
    if keys is None:
        return answer
    if secret_file is None:
        raise ConfigError("secret_file is missing: name the secret that keys are hashed with")
    return about(answer, _rows_of(folder, manifest, keys, Path(secret_file)))


def _sums(folder: Path, manifest: Manifest) -> Integers:
    """(G,) sums as they were sent, verified."""
    content, rows = manifest.content, open_rows(folder, manifest)
    if rows.rows != manifest.rows:
        raise ReleaseError(f"{folder} has {rows.rows:,} sums instead of {manifest.rows:,}")
    sums, blocks = [], block_ranges(manifest.rows, content.block_rows)
    for digest, (start, stop) in zip(content.blocks, blocks, strict=True):
        sent = rows.read_bytes(start, stop)
        if block_digest(*sent) != digest:
            raise ReleaseError(
                f"sums {start:,} to {stop:,} in {folder} do not match the manifest's digest; fetch"
                " again"
            )
        sums.append(decode_sums(sent[1]))
    return np.concatenate(sums)


def _rows_of(folder: Path, manifest: Manifest, keys: Any, secret_file: Path) -> Integers:
    """(n,) places of keys among the submitted ones; -1 of those that are none."""
    import polars as pl

    secret, population = read_secret(secret_file), manifest.population
    if population.secret_check != secret_check(secret).hex():
        raise ConfigError(
            f"{secret_file} is not the secret that the events in {folder} were hashed with; name"
            " that one"
        )
    path = folder / POPULATION_FILE
    with file_errors(ReleaseError, f"{path} cannot be read"):
        kept = path.read_bytes()
    if hashlib.sha256(kept).hexdigest() != population.digest:
        raise ReleaseError(f"{path} is not the population that the sums in {folder} are of")
    submitted = np.frombuffer(kept, dtype=KEY_TYPE)
    mine = np.frombuffer(hash_keys(pl.Series("keys", keys), secret), dtype=KEY_TYPE)
    if not mine.size:
        raise DataError("there are no keys; give those of the submitted events")
    if repeated := count_repeated(mine):
        raise DataError(f"{repeated:,} keys occurred before; give each event once")
    order = sort_keys(submitted)
    at, found = match_keys(submitted[order], mine)
    if missing := submitted.size - int(found.sum()):
        raise DataError(
            f"{missing:,} of {submitted.size:,} submitted events are not among the {mine.size:,}"
            " keys; give all of them, in any order"
        )
    return np.where(found, order[at], -1)


def about(answer: PrivateSums, rows: Integers) -> PrivateSums:
    """The same sums, of a question whose (n,) events are these of its own; -1 is in no group."""
    whole, none = answer.question, rows < 0
    levels, weights = (
        None if column is None else np.where(none, 0, column[rows])
        for column in (whole.levels, whole.weights)
    )
    groups = np.where(none, NO_GROUP, whole.groups[rows])
    question = replace(whole, groups=groups, levels=levels, weights=weights)
    return PrivateSums(NoisySums(question, answer.noisy.epsilon), answer.sums)


def answered(folder: Path, manifest: Manifest) -> NoisySums:
    """The question that a manifest's sums answer, and the noise on them as the manifest states it.

    ``ReleaseError`` if the manifest has codes, or states something else than the question says.
    """
    sums = manifest.sums
    if sums is None:
        raise ReleaseError(
            f"the release of data set {manifest.data_set!r}, epoch {manifest.epoch!r}, has codes,"
            " and no sums over groups: read it with labelveil.read_release(FOLDER)"
        )
    check_question(folder, sums.question)
    question = read_question(folder / QUESTION_FILE, manifest.population.rows)
    if not isinstance(question, GroupQuestion):
        raise ReleaseError(f"{folder / QUESTION_FILE} does not ask for sums")
    try:
        noisy = NoisySums(question, sums.spent.exact_epsilon / manifest.privacy.records_per_unit)
    except (ConfigError, PrivacyError) as error:
        raise ReleaseError(f"the question in {folder} cannot have been answered: {error}") from None
    found = SumsSection.from_sums(noisy, sums.question)
    found = found.model_copy(update={"guarantee": sums.guarantee})  # which gave ε here
    if question.lattice != manifest.lattice or found != sums:
        raise ReleaseError(
            f"the manifest in {folder} states other groups, offsets, weights, widths or noise than"
            " the question that it says it answers"
        )
    return noisy
