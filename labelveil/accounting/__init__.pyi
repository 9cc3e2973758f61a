from common.guarantees import *
from common.guarantees.gaussian import gaussian_delta as gaussian_delta
from common.guarantees.gaussian import gaussian_sigma as gaussian_sigma
from common.guarantees.pld import PrivacyLoss as PrivacyLoss
