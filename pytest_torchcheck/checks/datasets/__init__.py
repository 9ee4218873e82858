"""Checks of datasets and loaders."""
