"""``python -m labelveil.label_party``."""

from labelveil.programs import label_party

label_party()
