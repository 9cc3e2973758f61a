"""What is kept forever: the ledger, what it paid for, backup and restore."""
