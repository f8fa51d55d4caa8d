"""A search: which trials to train next, and what the space is that they come from."""
