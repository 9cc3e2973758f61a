"""Read labels, randomize them once, serve the release: everything the labels party runs."""

import common.security.tls as _tls  # noqa: F401  before gRPC is imported anywhere
