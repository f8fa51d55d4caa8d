"""What Hydra calls for one job: a single run, or a trial of a sweep."""

import logging
import math
import sys
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from src import config as schema
from src.errors import InputError, door
from src.training.fit import fit
from src.training.sweep import Sweep

log = logging.getLogger(__name__)


def run_job(composed: DictConfig) -> float:
    """Trains one job and returns its monitored value.

    A trial that fails is logged and marked in its result; the sweep goes on and its sweeper gets
    NaN. A single run ends the process: with status 2 for an InputError.
    """
    hydra = HydraConfig.get()
    folder = Path(hydra.runtime.output_dir)
    values = OmegaConf.to_container(composed, resolve=True)
    assert isinstance(values, dict)
    if hydra.mode == RunMode.RUN:
        with door():
            return fit(
                schema.check({str(key): value for key, value in values.items()}), folder
            ).monitored
    try:
        return fit(
            schema.check({str(key): value for key, value in values.items()}), folder
        ).monitored
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
