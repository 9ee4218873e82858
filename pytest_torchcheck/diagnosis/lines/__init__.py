"""Lines of the user's code, found from what a run did there."""
