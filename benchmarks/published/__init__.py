"""The published comparisons of private selection and PATE, run again on data at hand."""
