"""What a contract calls and names."""
