"""What a trusted curator could learn: private empirical risk minimisation, ridge for label DP.

These are baselines and library parts: the product's own message is made elsewhere, without looking
at any feature.
"""
