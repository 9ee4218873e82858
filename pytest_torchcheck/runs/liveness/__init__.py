"""What a forward computes and nothing reads."""
