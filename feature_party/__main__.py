"""``python -m labelveil.feature_party``."""

from labelveil.programs import feature_party

feature_party()
