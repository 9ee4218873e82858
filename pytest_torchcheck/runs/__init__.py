"""What the runs of a subject show: each run is made once, and shared by every check and explainer that asks."""
