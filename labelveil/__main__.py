"""``python -m labelveil``."""

from labelveil.programs import labelveil

labelveil()
