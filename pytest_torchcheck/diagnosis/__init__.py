"""From evidence to a culprit, a line, a cause and a fix; findings of one fact folded under it."""
