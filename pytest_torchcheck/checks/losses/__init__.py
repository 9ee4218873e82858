"""Checks of losses and targets."""
