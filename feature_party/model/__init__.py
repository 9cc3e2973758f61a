"""A trained model: encoding, network, prediction."""
