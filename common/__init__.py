"""What both parties need: mechanisms, guarantees, the release format. Imports neither party."""
