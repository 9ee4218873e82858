"""Which positions and samples reach which values."""
