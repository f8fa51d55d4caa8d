"""Every key of a configuration, and how a command line becomes one."""
