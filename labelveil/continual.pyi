from common.mechanisms.continual import *
from common.mechanisms.continual.tree import TreeNoise as TreeNoise
