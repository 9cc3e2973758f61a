"""Tests; a package, so that no installed `tests` can stand in for it."""
