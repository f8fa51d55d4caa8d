"""What Hydra calls for one job: a single run, or a trial of a sweep."""

import logging
import math
import sys
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from src import composition
from src import config as schema
from src.errors import InputError, door
from src.training.fit import fit
from src.training.sweep import Sweep

log = logging.getLogger(__name__)


def run_training(composed: DictConfig) -> float:
    """Trains one job and returns its monitored value.

    A trial that fails is logged and marked in its result; the sweep goes on and its sweeper gets
    NaN. A single run ends the process: with status 2 for an InputError, 1 where it diverged.
    """
    hydra = HydraConfig.get()
    folder = Path(hydra.runtime.output_dir)
    if hydra.mode == RunMode.RUN:
        with door():
            run = fit(schema.check(composition.values_of(composed)), folder)
        if run.result["status"] == "diverged":
            raise SystemExit(1)
        return run.monitored
    try:
        return fit(schema.check(composition.values_of(composed)), folder).monitored
    except InputError as error:
        log.error("error: %s", error)
    except Exception:
        log.exception("trial %s failed", folder.name)
    finally:
        Sweep(Path(hydra.sweep.dir)).write_results()
    return math.nan


def finish_sweep(folder: Path) -> None:
    """Prints the sweep's table; exits with status 1 when a trial failed."""
    sweep = Sweep(folder)
    print(f"\n{sweep.table()}")
    failures = sweep.failures()
    if failures:
        print(f"error: {failures} of {len(sweep.trials)} trials failed", file=sys.stderr)
        raise SystemExit(1)
