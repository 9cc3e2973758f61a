"""The statistics and the attacks that several audits share, one a module."""
