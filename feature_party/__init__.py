"""Fetch a release, join it, train and report: everything the features party runs."""
