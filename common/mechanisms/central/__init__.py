"""What a trusted curator could learn: private empirical risk minimisation, ridge for label DP.

======================  ===============================================================
:mod:`.losses`          convex losses of a linear model, with their two constants
:mod:`.minimiser`       their minimiser, with a certified distance to the exact one
:mod:`.perturbation`    input, output and objective perturbation
:mod:`.estimators`      the same as scikit-learn estimators (``labelveil[central]``)
:mod:`.gradient_steps`  noisy sums of clipped gradients: the private part of DP-SGD
:mod:`.dp_sgd`          DP-SGD as scikit-learn estimators (``labelveil[central]``)
:mod:`.label_ridge`     ridge regression when only labels are secret
======================  ===============================================================

These are baselines and library parts: the product's own message is made elsewhere, without looking
at any feature.
"""
