"""Benchmarks: a suite times its contenders in turns, in one process, and compares them.

A new suite is a module in benchmarks/suites with a function `run(settings)`, which returns a
table for people and a JSON line for programs.
"""

from importlib import import_module

from benchmarks.settings import SHARED, Settings


def run_suite(settings: Settings) -> tuple[str, str]:
    """The table and the JSON line of a suite."""
    module = SHARED.get(settings.suite, settings.suite)
    result: tuple[str, str] = import_module(f"{__package__}.suites.{module}").run(settings)
    return result
