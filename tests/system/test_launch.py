"""Which rank this process is, by the environment of its launcher."""

import pytest

from kindling.system.launch import LaunchInfo, launch_info

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}
SLURM = {"SLURM_NTASKS": "4", "SLURM_NNODES": "2", "SLURM_PROCID": "1", "SLURM_JOB_NAME": "train"}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, LaunchInfo()),
        (TORCHRUN, LaunchInfo()),  # without the launcher's own variable
        ({**TORCHRUN, "TORCHELASTIC_RUN_ID": "x"}, LaunchInfo(3, 4, 2, "torchrun")),
        (SLURM, LaunchInfo()),  # the shell of a batch job
        ({**SLURM, "SLURM_STEP_ID": "0"}, LaunchInfo(1, 4, 2, "srun")),
        ({**SLURM, "SLURM_STEP_ID": "0", "SLURM_JOB_NAME": "interactive"}, LaunchInfo()),
        ({**SLURM, "SLURM_STEP_ID": "0", "SLURM_NTASKS": "1"}, LaunchInfo()),
    ],
)
def test_the_launcher_tells_rank_and_world_size(
    environment: dict[str, str], expected: LaunchInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TORCHELASTIC_RUN_ID", *SLURM, "SLURM_STEP_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert launch_info() == expected
