"""What a trusted curator could learn: private ERM and DP-SGD as scikit-learn estimators."""

from labelveil.lazy import lazily

__getattr__, __dir__ = lazily(__name__)
