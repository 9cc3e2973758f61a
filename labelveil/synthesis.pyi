from labelveil.common.mechanisms.synthesis import *
