"""Sweeps to confirm: with pretended results, and with trained ones."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kindling.config.compose import compose
from kindling.config.schema import Config
from kindling.records.config_files import create_run_folder
from kindling.records.folder import Run
from kindling.records.outcome import all_metrics
from kindling.records.sweep_folder import Sweep
from kindling.sweeps.trials import train_trials

SMALL = (
    *("data=digits", "trainer=cpu", "trainer.max_epochs=2", "model.hidden_sizes=[4]"),
    *("optimizer.lr=0.1", "checkpoint.keep=all"),
)


def settle(run: Run, config: Config, value: float | None, status: str = "finished") -> None:
    """Writes a result: the monitored value, and as test metrics the value less 0.01."""
    monitor = config.checkpoint.monitor
    names = [name for name in all_metrics(monitor) if name.startswith("test/")]
    tested = {} if value is None else dict.fromkeys(names, value - 0.01)
    result: dict[str, Any] = {
        "status": status, "monitor": monitor, "config_hash": config.hash(),
        "best": {monitor: value}, "data": {"name": config.data.name}, **tested,
    }  # fmt: skip
    run.folder.mkdir(parents=True, exist_ok=True)
    run.write_result(result)


def begun(folder: Path, number: int, *overrides: str) -> tuple[Run, Config]:
    """A trial of a sweep, without a result. Later overrides replace earlier ones."""
    typed = [*{text.partition("=")[0]: text for text in (*SMALL, *overrides)}.values()]
    config, run = compose(*typed), Run(folder / str(number))
    create_run_folder(run, config.to_primitives(), typed)
    (folder / "multirun.yaml").write_text("{}")
    return run, config


def pretended_sweep(folder: Path, *trials: tuple[Sequence[str], float | None]) -> Path:
    """A sweep of trials that never trained: their overrides and values. None: it diverged."""
    for number, (overrides, value) in enumerate(trials):
        status = "finished" if value is not None else "diverged"
        settle(*begun(folder, number, *overrides), value, status)
    return folder


RATES = ("0.1", "0.3", "0.5")


def trained_sweep(folder: Path, *common: str) -> Path:
    """Three rates with two seeds each."""
    points = [(f"optimizer.lr={rate}", f"seed={seed}") for rate in RATES for seed in (0, 1)]
    return _trained(folder, [(*common, *point) for point in points])


def cross_validated_sweep(folder: Path) -> Path:
    """Two rates on two folds each."""
    folds = [("data.folds=2", f"data.fold={fold}") for fold in range(2)]
    return _trained(
        folder, [(f"optimizer.lr={rate}", *fold) for rate in RATES[:2] for fold in folds]
    )


def _trained(folder: Path, points: Sequence[Sequence[str]]) -> Path:
    trials = [begun(folder, number, *point) for number, point in enumerate(points)]
    train_trials([config for _, config in trials], [run.folder for run, _ in trials],
                 Sweep(folder), None)  # fmt: skip
    return folder
