"""Exported models: their formats, and the comparison with the model."""
