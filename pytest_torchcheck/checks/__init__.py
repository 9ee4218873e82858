"""The catalogue of checks, one file per family."""
