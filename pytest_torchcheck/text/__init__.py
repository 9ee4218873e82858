"""Words, amounts and names in messages."""
