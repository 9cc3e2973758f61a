from labelveil.common.mechanisms.selection import *
