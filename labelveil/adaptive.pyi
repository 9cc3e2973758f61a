from common.mechanisms.generalization import expected_gap as expected_gap
from common.mechanisms.generalization import fresh_gap as fresh_gap
from common.mechanisms.generalization import max_information_gap as max_information_gap
from common.mechanisms.generalization import transfer_gap as transfer_gap
from common.mechanisms.paired_gain import NoisyAnswers as NoisyAnswers
from common.mechanisms.paired_gain import PairedGain as PairedGain
from common.mechanisms.thresholdout import ReusableHoldout as ReusableHoldout
from common.mechanisms.thresholdout import Thresholdout as Thresholdout
