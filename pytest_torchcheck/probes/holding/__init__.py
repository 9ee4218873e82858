"""What holds tensors, modules and memory."""
