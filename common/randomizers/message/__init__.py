"""What one message is made of: the labels' terms, its plan, its channels, its codes."""
