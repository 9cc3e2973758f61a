"""Audits: exact certificates, empirical bounds, label inference, attacks on the implementation.

Statistics can only falsify; the exact audit is the certificate. Bounds are shown at 95%, and checks
fail at a false-alarm rate of one in a million.

A check is a function of what it looks at. It is declared by :meth:`.verdict.Probes.add` with its
name, its question and what it claims, in a list of all checks of the same, in their order:

- ``certificate``: ``FORM``, ``CHECKS``, ``NOT_CHECKABLE`` and ``FIELDS`` in
  :mod:`.certificate.run`, of several epochs ``EPOCHS`` in :mod:`.certificate.epochs`;
- ``mechanism``: ``PROBES`` in :mod:`.mechanism.run`;
- ``party``: ``SERVED`` and ``NOT_CHECKABLE`` in :mod:`.canaries.endpoint`, of our own software
  eight more that :mod:`.canaries.party` goes through;
- ``canaries score``: ``CODES`` in :mod:`.canaries.codes` or ``SUMS`` in :mod:`.canaries.sums`;
- ``inference``: ``MESSAGE`` in :mod:`.canaries.inference` and ``MODEL`` in :mod:`.canaries.model`.

What makes it fail is a comparison that admits no chance, or one of three tests: right guesses bound
ε above the claim (:meth:`.verdict.Bounds.check`), a sum is too large for noise
(:meth:`.attacks.rows_apart.Association.check`), or what is left when known labels are taken off is
no noise as stated (:func:`.attacks.laws.noise_check`). :meth:`.verdict.Probes.audit` runs a list;
:func:`labelveil.commands.verdicts.conduct` prints what was found, writes it, and exits.
"""
