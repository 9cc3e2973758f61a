from common.mechanisms.pate import *
