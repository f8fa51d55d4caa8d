"""Where the groups of a sweep train: here, in processes of this machine, or on a cluster."""
