from common.randomizers import *
from common.randomizers.design.assessment import Assessor as Assessor
