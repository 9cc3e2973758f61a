"""What a mechanism promises, with its adjacency and privacy unit, and how promises compose."""

from common.guarantees.base import Adjacency, Guarantee, Unit, compose, guarantee_from_json
from common.guarantees.pure import PureDP

__all__ = ["Adjacency", "Guarantee", "PureDP", "Unit", "compose", "guarantee_from_json"]
