"""Audits: exact certificates, empirical bounds, label inference, attacks on the implementation.

Statistics can only falsify; the exact audit is the certificate. Bounds are shown at 95%, and checks
fail at a false-alarm rate of one in a million.
"""
