"""Fetch a release, join it, train and report: everything the features party runs."""

import common.security.tls as _tls  # noqa: F401  before gRPC is imported anywhere
