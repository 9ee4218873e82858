"""Recorded runs: their values and calls, and what two records show side by side."""
