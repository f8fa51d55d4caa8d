"""The suites of benchmarks, each a module with a function `run(settings)`."""
