"""The neutral program: simulation, comparison, audits, accounting."""
