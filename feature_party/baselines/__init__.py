"""What a party that held features and labels would reach."""
