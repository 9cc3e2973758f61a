"""Audits by labels that the auditor knows."""
