"""What runs and sweeps came to, as one page and as pictures."""
