"""``python -m label_party``."""

from label_party.cli import main

main()
