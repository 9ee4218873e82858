"""Padding that counts in a loss, explained."""
