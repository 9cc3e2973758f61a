"""The labels party's folder of the labels party's own tests, with what it needs."""

from tests.label_party.conftest import (
    authority,
    client_identity,
    party,
    run_cli,
    server_identity,
)

__all__ = ["authority", "client_identity", "party", "run_cli", "server_identity"]
