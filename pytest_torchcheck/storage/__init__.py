"""Files that this package writes."""
