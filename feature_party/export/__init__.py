"""A trained model for serving elsewhere."""
