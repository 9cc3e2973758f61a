"""Where labels and populations are read from: files, object stores, databases."""
