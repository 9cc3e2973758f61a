from common.mechanisms.selection import *
