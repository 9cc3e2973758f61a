"""The gRPC server: who may fetch what, how much, and how calls end."""

from common.security import tls as _tls  # noqa: F401  before gRPC is imported anywhere
