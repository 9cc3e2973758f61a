from labelveil.common.mechanisms.interactive import *
from labelveil.common.mechanisms.interactive.targets import not_prior as not_prior
from labelveil.lasting import open_session as open_session
