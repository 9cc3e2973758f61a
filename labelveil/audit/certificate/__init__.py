"""What a manifest and a labels file prove by themselves."""
