"""Private algorithms beyond one randomized label: selection, PATE, interaction, synthesis, ERM."""
