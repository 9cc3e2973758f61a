from common.mechanisms.synthesis import *
