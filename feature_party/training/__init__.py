"""From matched events to a trained model."""
