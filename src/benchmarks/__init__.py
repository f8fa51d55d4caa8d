"""Benchmarks: each suite runs its contenders interleaved in one process and compares them."""

from src.benchmarks.settings import Settings


def run_suite(settings: Settings) -> tuple[str, str]:
    """The suite's table for people and its JSON line."""
    if settings.suite == "loops":
        from src.benchmarks import loops

        return loops.run(settings.rounds, settings.data)
    if settings.suite == "checkpoints":
        from src.benchmarks import checkpoints

        return checkpoints.run(settings.rounds, settings.data)
    if settings.suite == "report":
        from src.benchmarks import reports

        return reports.run(settings.rounds, settings.data)
    if settings.suite == "gpu_check":
        from src.benchmarks import gpu_check

        return gpu_check.run(settings.rounds, settings.data)
    if settings.suite != "sweep":
        from src.benchmarks import questions

        return questions.run(settings.suite, settings.rounds)
    from src.benchmarks import sweep

    return sweep.run(settings.rounds, settings.data, settings.full, settings.commands)
