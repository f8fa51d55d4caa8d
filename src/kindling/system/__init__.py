"""The machine and the process: devices, memory, files, signals, and how a command ends."""
