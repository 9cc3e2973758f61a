"""How many small faults the tests notice: ``make mutants``."""
