"""Measurements of speed and memory: ``python -m benchmarks [TOPIC …]``. They assert nothing.

A topic is a module in this folder with a function ``run(bench)`` that returns a
:class:`~benchmarks.harness.Table`; its first docstring line is its description. Putting the
file here is all the registration there is.
"""
