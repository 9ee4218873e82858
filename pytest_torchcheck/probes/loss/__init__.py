"""What a loss does with its output and targets."""
