"""Audits by labels that the auditor knows: planted, released here, or of a finished run."""
