from labelveil.common.mechanisms.continual import *
