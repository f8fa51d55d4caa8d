"""Packs: from a table to a committee of many small networks, by one command."""
