"""The configuration of the labels party: one section for each table of label_party.toml."""
