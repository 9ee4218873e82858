"""Sizes of signals, and numbers that are not finite."""
