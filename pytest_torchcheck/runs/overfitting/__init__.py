"""Training on one batch: what can be learnt, and what the attempts showed."""
