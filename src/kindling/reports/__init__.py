"""Reports of runs and sweeps: one page, and pictures."""
