"""``python -m label_party``."""

from label_party.commands.cli import main

main()
