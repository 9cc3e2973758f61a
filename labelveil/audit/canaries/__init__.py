"""Audits by labels that the auditor knows: planted with a partner, released by labels parties that
run here, or found in a finished run."""
