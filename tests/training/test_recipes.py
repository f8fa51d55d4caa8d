"""Settings of recipes that are refused, and why."""

from pathlib import Path

import pytest

from kindling.config.compose import compose
from kindling.data.sources.digits import digits
from kindling.data.sources.source import split_off_validation
from kindling.system.errors import InputError
from kindling.training.fit import fit
from tests.helpers.commands import SMALL


def test_batch_norm_refuses_a_batch_of_one_sample(tmp_path: Path) -> None:
    size = len(split_off_validation(digits().train, 0.2, 0)[0]) - 1
    own = (*SMALL, "model.norm=batch", f"data.batch_size={size}")
    with pytest.raises(
        InputError, match=rf"the last batch of data\.batch_size={size} has only one"
    ):
        fit(compose(*own), tmp_path / "refused")
    for more in (("data.drop_last=true",), (f"data.batch_size={size + 1}",), ("model.norm=layer",)):
        assert fit(compose(*own, *more), tmp_path / more[0]).result["status"] == "finished"
    alone = (*SMALL, "model.norm=batch", "data.batch_size=1")
    with pytest.raises(InputError, match=r"one sample has no variance.*type data\.batch_size=2"):
        compose(*alone)


@pytest.mark.parametrize(
    ("overrides", "fault"),
    [
        (["model.dropout=[0.1,0.2]"], "must be one number, or one for each"),
        (["model.dropout=[1.5]"], "model.dropout=[1.5]"),
        (["model.norm=bach"], "model.norm=bach: must be one of batch, layer; did you mean batch?"),
        (["model.noise=-0.1"], "model.noise=-0.1: must be greater than or equal to 0"),
        (["model.noise=.nan"], "model.noise=.nan: must be a valid number"),
        (["model.noise=.inf"], "model.noise=.inf: must be a valid number"),
        (["model.noise=1e13"], "model.noise=10000000000000.0: must lie between 1e-12 and 1e+12"),
        (["model=logistic_regression", "+model.noise=0.3"], "model.noise"),
        (["model.max_norm=0"], "model.max_norm=0: must be greater than 0"),
        (["trainer.label_smoothing=1"], "trainer.label_smoothing=1: must be less than 1"),
        (["trainer.ema_decay=1"], "trainer.ema_decay=1: must be less than 1"),
        (["trainer.early_stopping_patience=0"], "trainer.early_stopping_patience=0"),
        (["scheduler.warmup_epochs=-1"], "scheduler.warmup_epochs=-1"),
        (["scheduler=onecycle", "+scheduler.warmup_epochs=1"], "onecycle has no such key"),
        (["model.norm=batch", "trainer.devices=2"], "type trainer.devices=1, or model.norm=layer"),
        (["trainer.ema_decay=0.9", "trainer.strategy=fsdp"], "type trainer.strategy=ddp"),
        (["model.max_norm=2", "trainer.strategy=fsdp"], "type trainer.strategy=ddp"),
    ],
)  # fmt: skip
def test_wrong_settings_are_reported(overrides: list[str], fault: str) -> None:
    with pytest.raises(InputError) as caught:
        compose(*overrides)
    assert fault in str(caught.value)
