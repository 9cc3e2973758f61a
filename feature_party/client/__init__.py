"""Talking to the labels party: submit, fetch, ask."""

from common.security import tls as _tls  # noqa: F401  before gRPC is imported anywhere
