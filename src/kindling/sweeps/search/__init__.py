"""Searches: Optuna proposes batches of trials, which train as stacks."""
