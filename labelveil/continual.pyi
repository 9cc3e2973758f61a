from labelveil.common.mechanisms.continual import *
from labelveil.common.mechanisms.continual.tree import TreeNoise as TreeNoise
