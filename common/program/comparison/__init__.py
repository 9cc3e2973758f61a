"""Randomizers × objectives × ε × runs on one data set: jobs, workers, tables, plots."""

from common.program.comparison.jobs import Job, Method, baselines, default_methods, make_jobs
from common.program.comparison.run import Comparison, compare

__all__ = ["Comparison", "Job", "Method", "baselines", "compare", "default_methods", "make_jobs"]
