"""What anybody's model needs of a release: its facts, losses, objectives, decoded labels."""
