"""Checks of training over several ranks."""
