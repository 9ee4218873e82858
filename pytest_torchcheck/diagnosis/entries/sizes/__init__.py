"""Errors of torch about sizes: which layer or operation expects another."""
