"""Objects of the user's: read, traversed and compared without running their code."""
