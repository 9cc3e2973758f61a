from labelveil.common.mechanisms.central.dp_sgd import DPSGDClassifier as DPSGDClassifier
from labelveil.common.mechanisms.central.dp_sgd import DPSGDRegressor as DPSGDRegressor
from labelveil.common.mechanisms.central.estimators import (
    PrivateHuberClassifier as PrivateHuberClassifier,
)
from labelveil.common.mechanisms.central.estimators import (
    PrivateHuberRegressor as PrivateHuberRegressor,
)
from labelveil.common.mechanisms.central.estimators import (
    PrivateLogisticRegression as PrivateLogisticRegression,
)
from labelveil.common.mechanisms.central.estimators import PrivateRidge as PrivateRidge
from labelveil.common.mechanisms.central.label_ridge import LabelRidge as LabelRidge
