"""How a run is observed: torch functions, kernels and lines, each seen by one mechanism."""
