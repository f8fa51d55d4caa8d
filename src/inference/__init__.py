"""A trained model in use."""
