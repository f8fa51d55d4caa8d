"""Data sets, a module for each family."""
