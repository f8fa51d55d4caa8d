"""Power cuts, simulated: what a process does to files is recorded, and the states of the disk are
built that a cut at any moment may leave."""
