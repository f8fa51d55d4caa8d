"""The machine and the process."""
