"""The function that Hydra calls for each job: a single run, or a trial of a sweep."""

import logging
import math
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from src.config.compose import job_config
from src.config.faults import config_error
from src.runs.folder import Run
from src.runs.sweep_folder import Sweep
from src.system.errors import InputError, exit_on_error
from src.training.fit import fit

log = logging.getLogger(__name__)


def run_job(composed: DictConfig) -> float:
    """Trains one job and returns its monitored value.

    A trial that fails is logged, its result has the status `failed`, the sweeper gets NaN, and the
    sweep continues. A single run ends the process: with status 2 after an InputError, with 1 when
    it diverged, with 128 + the number of a signal. A signal ends a sweep in the same way.
    """
    hydra = HydraConfig.get()
    folder = Path(hydra.runtime.output_dir)
    with exit_on_error():  # Hydra would add a traceback
        if hydra.mode == RunMode.RUN:
            return monitored(_fit(composed, folder))
        try:
            return _fit(composed, folder).monitored
        except InputError as error:
            log.error("error: %s", error)
        except Exception:
            log.exception("trial %s failed", folder.name)
        finally:
            Sweep(Path(hydra.sweep.dir)).write_results()
    return math.nan


def _fit(composed: DictConfig, folder: Path) -> Run:
    config, faults = job_config(composed, HydraConfig.get().overrides.task)
    if config is None:
        raise config_error(faults)
    return fit(config, folder, resume=config.resume == "auto")


def monitored(run: Run) -> float:
    """The monitored value of a run. Ends the process with status 1 when the run diverged."""
    if run.result.get("status") == "diverged":
        raise SystemExit(1)
    return run.monitored
