"""Runs of the model in another way: other weights, quiet training mode, and step by step."""
