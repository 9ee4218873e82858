"""What a collate function keeps of samples, mixes, loses and writes."""
