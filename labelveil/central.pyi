from common.mechanisms.central.dp_sgd import DPSGDClassifier as DPSGDClassifier
from common.mechanisms.central.dp_sgd import DPSGDRegressor as DPSGDRegressor
from common.mechanisms.central.estimators import PrivateHuberClassifier as PrivateHuberClassifier
from common.mechanisms.central.estimators import PrivateHuberRegressor as PrivateHuberRegressor
from common.mechanisms.central.estimators import (
    PrivateLogisticRegression as PrivateLogisticRegression,
)
from common.mechanisms.central.estimators import PrivateRidge as PrivateRidge
from common.mechanisms.central.label_ridge import LabelRidge as LabelRidge
