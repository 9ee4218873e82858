"""What checkpoints, copies and attributes hold or lose, and what memory goes into, explained."""
