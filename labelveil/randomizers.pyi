from labelveil.common.randomizers import *
from labelveil.common.randomizers.design.assessment import Assessor as Assessor
