from labelveil.common.mechanisms.pate import *
