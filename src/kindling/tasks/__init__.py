"""What the outputs of a model mean: loss, decision and measures."""
