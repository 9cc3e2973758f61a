"""Randomizers × objectives × ε × runs on one data set: jobs, workers, tables, plots."""

from common.program.comparison.jobs import Job, Method
from common.program.comparison.run import Comparison, run_comparison
from common.program.comparison.settings import CompareSettings

__all__ = ["CompareSettings", "Comparison", "Job", "Method", "run_comparison"]
