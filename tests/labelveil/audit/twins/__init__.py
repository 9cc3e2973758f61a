"""Broken builds that an audit must catch: one class for each known way of getting it wrong."""
