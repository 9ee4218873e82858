"""From evidence on data to findings, with the user's lines."""
