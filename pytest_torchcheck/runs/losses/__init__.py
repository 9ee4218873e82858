"""Runs that show how a loss consumes an output."""
