"""Checks of devices, precision and memory."""
