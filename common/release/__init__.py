"""The message that both parties verify: manifest, blocks of codes, keys, signature."""
