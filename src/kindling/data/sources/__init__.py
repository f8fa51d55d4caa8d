"""Data sets: a module for each, or for a family; catalogue.py finds them by name."""
