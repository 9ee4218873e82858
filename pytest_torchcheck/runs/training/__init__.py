"""Training steps of a subject, watched once for all that ask."""
