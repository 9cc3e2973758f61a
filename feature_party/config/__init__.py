"""The configuration of the features party: one section for each table of feature_party.toml."""
