"""Missing, cut, frozen and zero gradients, explained."""
