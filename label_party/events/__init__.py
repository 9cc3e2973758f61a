"""One completed label for every event that both parties know."""
