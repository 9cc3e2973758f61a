"""The labels party's signature under its manifests, where it has a key for that."""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from common.files import write_durably
from common.release.folder import MANIFEST_FILE, SIGNATURE_FILE
from common.release.signature import read_signing_key
from label_party.config.sections import KeysSection, LabelPartyConfig
from label_party.store.disk import translating_errors
from label_party.store.release_store import Store


def signing_key(keys: KeysSection) -> Ed25519PrivateKey | None:
    path = keys.signing_key
    return None if path is None else read_signing_key(path)


def sign_again(config: LabelPartyConfig) -> None:
    """Sign a release that was made without the configured key.

    Ed25519 signatures are a function of key and bytes, so an equal one is the same.
    """
    key, store = signing_key(config.keys), Store(config.store.directory)
    if key is None:
        return
    directory = store.path(config.data.data_set, config.data.epoch)
    with translating_errors(directory):
        signature = key.sign((directory / MANIFEST_FILE).read_bytes())
        path = directory / SIGNATURE_FILE
        if not path.is_file() or path.read_bytes() != signature:
            write_durably(path, signature)
