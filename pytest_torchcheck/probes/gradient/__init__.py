"""Where gradients end, become zero or are recomputed."""
