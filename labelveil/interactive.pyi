from common.mechanisms.interactive import *
from common.mechanisms.interactive.targets import not_prior as not_prior
