"""Checks of training steps and loops."""
