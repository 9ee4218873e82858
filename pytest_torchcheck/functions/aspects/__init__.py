"""What is asked of a custom Function beside its plain gradient, one question per module."""
