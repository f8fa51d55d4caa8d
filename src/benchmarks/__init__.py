"""Benchmarks: each suite runs its contenders interleaved in one process and compares them."""

from importlib import import_module

from src.benchmarks.settings import Settings

ON_DATA = {  # suites of a data set, and their modules
    "loops": "loops",
    "search": "searches",
    "checkpoints": "checkpoints",
    "report": "reports",
    "busy": "busy",
    "gpu_check": "gpu_check",
}


def run_suite(settings: Settings) -> tuple[str, str]:
    """The suite's table for people and its JSON line."""
    if settings.suite in ON_DATA:
        module = import_module(f"src.benchmarks.{ON_DATA[settings.suite]}")
        found: tuple[str, str] = module.run(settings.rounds, settings.data)
        return found
    if settings.suite != "sweep":
        from src.benchmarks import questions

        return questions.run(settings.suite, settings.rounds)
    from src.benchmarks import sweep

    return sweep.run(settings.rounds, settings.data, settings.full, settings.commands)
