"""Training: one run (fit), its steps, and a sweep's results."""
