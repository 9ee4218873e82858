"""Optimizers, initial weights and training on one batch, explained."""
