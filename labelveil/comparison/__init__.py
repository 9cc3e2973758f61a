"""Randomizers × objectives × ε × runs on one data set: jobs, workers, tables, plots."""

from labelveil.comparison.run import Comparison, run_comparison
from labelveil.comparison.settings import CompareSettings, Job, Method

__all__ = ["CompareSettings", "Comparison", "Job", "Method", "run_comparison"]
