"""Attack a labels party: two data sets that differ in one label, and its endpoint."""
