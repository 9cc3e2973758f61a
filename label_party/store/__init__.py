"""What is kept for ever: the ledger, what it paid for, backup and restore."""
