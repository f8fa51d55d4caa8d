"""Which checkpoint a command takes, and what it says if there is none."""

from pathlib import Path

import pytest

from src.runs.weights import checkpoint_of
from src.system.errors import InputError
from tests.helpers.runs import ended


@pytest.mark.parametrize(
    ("status", "told"),
    [
        ("failed", "it failed before its first checkpoint (no internet); correct that and type"),
        ("interrupted", "it was interrupted before its first checkpoint; type"),
        (None, "it has not come to its first checkpoint; wait for it, or, if it was killed, type"),
        ("diverged", "it diverged before its first checkpoint; name another run"),
        ("finished", "name another run, or train this one again: python -m src.train seed=3"),
    ],
)
def test_why_a_run_has_no_weights(status: str | None, told: str, tmp_path: Path) -> None:
    """The message is true, and says what to type."""
    also = {"error": "InputError: no internet\nmore"} if status == "failed" else {}
    run = ended(tmp_path, None, "seed=3", status=status or "finished", also=also)
    run.remove_checkpoints(but_best=False)
    if status is None:
        run.result_file.unlink()
    with pytest.raises(InputError) as caught:
        checkpoint_of(tmp_path)
    assert told in str(caught.value)
    resumes = f"type python -m src.train resume={tmp_path}" in str(caught.value)
    assert resumes == (status in ("failed", "interrupted", None))
    assert "is not a run folder" not in str(caught.value)


def test_the_best_trial_of_a_sweep_is_named(tmp_path: Path) -> None:
    """The best that has weights: those of others may be removed by checkpoint.keep."""
    (tmp_path / "multirun.yaml").write_text("")
    for number, value in enumerate((0.25, 0.5, 0.75)):
        run = ended(tmp_path / str(number), value, f"seed={number}")
        if number == 2:
            run.remove_checkpoints(but_best=False)

    def told() -> str:
        with pytest.raises(InputError) as caught:
            checkpoint_of(tmp_path)
        return str(caught.value)

    assert told() == (
        f"{tmp_path}: is a sweep; name one of its trials, such as the best one, {tmp_path / '1'}"
    )
    for number in range(2):
        (tmp_path / str(number) / "checkpoints" / "best.ckpt").unlink()
    assert told().endswith(
        "no trial has weights; to train on, type " + f"python -m src.train resume={tmp_path}"
    )
