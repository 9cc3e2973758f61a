"""Which secret each release's keys are hashed with, where the parties have changed theirs.

A manifest says by which check its secret is recognised. One of format 1 does not; where there are
several secrets, its keys are compared with those of the features under each.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import polars as pl
import polars.selectors as cs

from labelveil.common.errors import DataError, listed
from labelveil.common.files import sha256_of
from labelveil.common.release.blocks import block_ranges
from labelveil.common.release.event_keys import canonical_keys, hash_keys, read_secret, secret_check
from labelveil.common.release.folder import POPULATION_FILE, read_manifest
from labelveil.common.release.manifest import Manifest, naming_manifest
from labelveil.common.release.rows import keys_column, open_rows, read_keys
from labelveil.feature_party.config.sections import FeaturePartyConfig
from labelveil.feature_party.tables import check_key, collect_table, scan_table

_TRIED = 1000
"""Rows of the features whose keys are tried in other spellings."""

_COMPARED = 1 << 20
"""Rows of a release that are compared; two keys are never equal by chance."""


def secrets_of_releases(config: FeaturePartyConfig) -> list[bytes]:
    """The secret of each release to learn from, in the order of ``config.releases``.

    ``DataError`` if some are hashed with none that is configured: one line with which these are.
    ``ConfigError`` if a secret cannot be read.
    """
    found: list[bytes] = []
    strange: list[str] = []
    files: dict[Path, None] = {}
    for party, folder in config.releases:
        secrets = {path: read_secret(path) for path in config.secrets_of(party)}
        manifest = _read(folder)
        if (secret := _secret_of(manifest, folder, secrets, config)) is None:
            of = f" of {party.called!r}" if config.several else ""
            strange.append(f"{manifest.epoch!r}{of}")
            files |= dict.fromkeys(secrets)
        else:
            found.append(secret)
    if strange:
        raise DataError(
            f"the keys of epoch{'s' * (len(strange) > 1)} {listed(strange)} are hashed with another"
            f" secret than {', '.join(map(str, files))}; name the file of that secret,"
            " which the labels party has, in [keys] old_secret_files, or leave these epochs out:"
            " set [labels_party] epochs to the others"
        )
    return found


def _read(folder: Path) -> Manifest:
    with naming_manifest(folder):
        return Manifest.parse(read_manifest(folder))


def _secret_of(
    manifest: Manifest, folder: Path, secrets: Mapping[Path, bytes], config: FeaturePartyConfig
) -> bytes | None:
    stated, different = manifest.population.secret_check, list(dict.fromkeys(secrets.values()))
    if stated is not None:
        return next((each for each in different if secret_check(each).hex() == stated), None)
    if len(different) == 1:  # it may be the wrong one: then nothing matches, which the join says
        return different[0]
    frame = scan_table(config.features)
    check_key(frame, config.key)
    keys = collect_table(frame.select(cs.by_name(config.key)))[config.key]
    theirs = next(released_keys(folder), None)
    for secret in different:
        hashed = hash_keys(keys, secret)
        if theirs is None:  # submitted: all of them, in our order
            if hashlib.sha256(hashed).hexdigest() == manifest.population.digest:
                return secret
        elif keys_column(hashed).is_in(theirs.implode()).any():
            return secret
    return None


def released_keys(folder: Path) -> Iterator[pl.Series]:
    """The keys of a release, some rows at a time; none if they are ours, and nobody kept them."""
    manifest, kept = _read(folder), folder / POPULATION_FILE
    sent = manifest.content.key_bytes > 0
    if not sent and (not kept.is_file() or sha256_of(kept) != manifest.population.digest):
        return
    for part in block_ranges(manifest.population.rows, _COMPARED):
        read = open_rows(folder, manifest).read(*part)[0] if sent else read_keys(kept, *part)
        yield keys_column(read)


_SPELLINGS: dict[str, Callable[[pl.Series], pl.Series]] = {
    "without white space around them": lambda keys: keys.str.strip_chars(),
    "in lower case": lambda keys: keys.str.to_lowercase(),
    "in upper case": lambda keys: keys.str.to_uppercase(),
    "without zeros in front": lambda keys: keys.str.strip_chars_start("0"),
    "without decimals": lambda keys: keys.str.replace(r"\.0+$", ""),
}


def spelling_that_matches(features: Path, key: str, folder: Path, secret: bytes) -> str:
    """How the features' keys would have to be written to be in a release; empty if nobody knows.

    The first few are tried in other spellings, under a secret that is the right one.
    """
    if (theirs := next(released_keys(folder), None)) is None:
        return ""
    first = scan_table(features).select(cs.by_name(key)).head(_TRIED)
    keys = canonical_keys(collect_table(first)[key])
    for said, spelled in _SPELLINGS.items():
        known = keys_column(hash_keys(spelled(keys), secret)).is_in(theirs.implode())
        if count := int(known.sum()):
            return f"; written {said}, {count:,} of the first {keys.len():,} are among them"
    return ""
