"""The entries of the error table, one module per family of messages."""
