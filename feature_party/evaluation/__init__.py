"""How good a model is, from privatized labels or true ones."""
