from labelveil.common.guarantees import *
from labelveil.common.guarantees.gaussian import gaussian_delta as gaussian_delta
from labelveil.common.guarantees.gaussian import gaussian_sigma as gaussian_sigma
from labelveil.common.guarantees.pld import PrivacyLoss as PrivacyLoss
