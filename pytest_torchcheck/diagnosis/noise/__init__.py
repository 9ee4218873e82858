"""Explanations of noise that training draws: how it is scaled, and whether it is drawn again."""
