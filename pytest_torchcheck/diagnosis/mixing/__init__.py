"""How samples, groups and padding reach what they must not."""
