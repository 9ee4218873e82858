"""Losses, their targets and what they are compared with, explained."""
