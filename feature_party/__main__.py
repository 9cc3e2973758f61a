"""``python -m feature_party``."""

from feature_party.commands.cli import main

main()
