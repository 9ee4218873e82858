"""Outputs that differ between two runs which should agree, explained."""
