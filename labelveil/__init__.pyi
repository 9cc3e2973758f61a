from common.entropy import Entropy as Entropy
from common.entropy import seeded_entropy as seeded_entropy
from common.entropy import system_entropy as system_entropy
from common.errors import LabelveilError as LabelveilError
from common.exact.channel import FiniteChannel as FiniteChannel
from common.guarantees import Adjacency as Adjacency
from common.guarantees import ApproximateDP as ApproximateDP
from common.guarantees import BoundedRange as BoundedRange
from common.guarantees import Guarantee as Guarantee
from common.guarantees import PureDP as PureDP
from common.guarantees import RenyiDP as RenyiDP
from common.guarantees import Unit as Unit
from common.guarantees import ZeroConcentratedDP as ZeroConcentratedDP
from common.guarantees import compose as compose
from common.guarantees import epsilon_at as epsilon_at
from common.guarantees import total as total
from common.randomizers import NoisyPrior as NoisyPrior
from common.randomizers import Randomizer as Randomizer
from common.randomizers import build_randomizer as build_randomizer
from common.randomizers import private_prior as private_prior
from common.randomizers import randomizer_names as randomizer_names
from common.randomizers import two_step as two_step
from common.randomizers.grid import Grid as Grid
from common.randomizers.private_labels import PrivateLabels as PrivateLabels
from common.randomizers.private_labels import randomize_labels as randomize_labels
from common.release.table import Release as Release
from common.release.table import read_release as read_release
from labelveil.estimators import LabelDPClassifier as LabelDPClassifier
from labelveil.estimators import LabelDPRegressor as LabelDPRegressor
from labelveil.own_models import decoded_labels as decoded_labels
from labelveil.own_models import lightgbm_objective as lightgbm_objective
from labelveil.own_models import torch_loss as torch_loss
from labelveil.own_models import xgboost_objective as xgboost_objective
from labelveil.runs import compare as compare
from labelveil.runs import simulate as simulate

__version__: str
__all__: list[str]
