"""The commands, each a module with a function `main`: they parse, check, call and print."""
