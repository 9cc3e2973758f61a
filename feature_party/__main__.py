"""``python -m feature_party``."""

from feature_party.cli import main

main()
