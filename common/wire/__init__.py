"""Stubs generated from protos/labelveil/v1 by `make protos`; never edited by hand."""
