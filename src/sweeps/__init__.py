"""Many trials: launchers, groups, search."""
