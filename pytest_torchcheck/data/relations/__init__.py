"""Relations between two readings of a dataset that hold for every correct one."""
