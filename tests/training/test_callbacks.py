"""Callbacks of the user's own: each that Lightning ships, and states of many kinds."""

import collections
import datetime
import enum
import itertools
import json
import logging
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch.callbacks as lightnings
import numpy as np
import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from benchmarks.crashes import fingerprint
from kindling.config.compose import compose
from kindling.config.schema import Config
from kindling.ranks.processes import RankKilledError
from kindling.records import checkpoint
from kindling.records.folder import Run
from kindling.records.plain_form import from_plain, to_plain
from kindling.system.errors import InputError, Interrupted
from kindling.training.callbacks import REFUSED, require_usable
from kindling.training.fit import fit, fit_stack
from kindling.training.history import History as OurHistory
from kindling.training.module import StackModule
from tests.helpers.commands import SMALL
from tests.helpers.kills import Killed, die_after_writing
from tests.helpers.tasks import HISTORY

Make = Callable[[], list[Callback]]


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Counter(Callback):
    """Counts its hooks, which a resumed run must go on counting."""

    def __init__(self) -> None:
        self.counts = collections.Counter[str]()

    def state_dict(self) -> dict[str, Any]:
        return {"counts": self.counts}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        assert type(state_dict["counts"]) is collections.Counter
        self.counts = state_dict["counts"]

    def on_train_epoch_start(self, *_: Any) -> None:
        self.counts["epoch starts"] += 1

    def on_train_batch_end(self, *_: Any) -> None:
        self.counts["batches"] += 1

    def on_validation_end(self, *_: Any) -> None:
        self.counts["validations"] += 1

    def on_train_epoch_end(self, *_: Any) -> None:
        self.counts["epochs"] += 1


class History(Callback):
    """Named as one of Kindling's own, with a state of many kinds."""

    def __init__(self) -> None:
        self.seen: set[int] = set()
        self.recent = collections.deque[Any](maxlen=2)
        self.colour, self.best = Colour.RED, (np.float64(0), Path("none"))

    def state_dict(self) -> dict[str, Any]:
        shared = [self.colour, datetime.timedelta(seconds=1), b"\0"]
        own = {name: vars(self)[name] for name in ("seen", "recent", "colour", "best")}
        return {**own, "twice": [shared, shared], "array": np.arange(3)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        assert state_dict.pop("twice")[1] == [state_dict["colour"], datetime.timedelta(0, 1), b"\0"]
        assert state_dict.pop("array").tolist() == [0, 1, 2]
        vars(self).update(state_dict)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        accuracy = trainer.callback_metrics["val/acc"]
        self.seen.add(trainer.current_epoch)
        self.recent.append((trainer.current_epoch, accuracy))
        if np.float64(accuracy) > self.best[0]:
            self.best = np.float64(accuracy), Path(f"epoch{trainer.current_epoch}")
            self.colour = Colour.BLUE


class Checkpoints(Counter):
    """Another such name, and another state."""


class Logs(Callback):
    """Logs at each level, and reads what was logged in the epoch before."""

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        pl_module.log("before", trainer.callback_metrics.get("val/acc", torch.tensor(-1.0)))

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        loss = outputs["losses"].mean()
        pl_module.log("mean", loss, on_step=False, on_epoch=True)
        pl_module.log("largest", loss, on_step=False, on_epoch=True, reduce_fx="max")
        pl_module.log_dict(
            {"sum": loss, "number": 1.0}, on_step=False, on_epoch=True, reduce_fx="sum"
        )
        self.log("last", loss)  # type: ignore[attr-defined]  # Lightning gives it
        if batch_idx == 0:  # before the first checkpoint of an epoch, and not after it
            pl_module.log("first", loss)
            pl_module.log("first of epoch", loss, on_step=False, on_epoch=True)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        pl_module.log("hidden", 1.0, logger=False)
        if trainer.current_epoch > 0:
            pl_module.log("late", float(trainer.current_epoch))


class StopsItself(Counter):
    """Stops the run in the middle of an epoch, at its 23rd block."""

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        super().on_train_batch_end()
        trainer.should_stop |= self.counts["batches"] >= 23


def _lambda_callback() -> lightnings.LambdaCallback:
    def log(trainer: Trainer, pl_module: LightningModule) -> None:
        pl_module.log("epoch twice", 2.0 * trainer.current_epoch)

    return lightnings.LambdaCallback(on_train_epoch_end=log)


# Callbacks of Lightning that work, with their arguments.
WORKING: dict[str, Callable[[], Callback]] = {
    "Callback": Callback,
    "EarlyStopping": lambda: lightnings.EarlyStopping("val/acc", mode="max", patience=1),
    "LambdaCallback": _lambda_callback,
    "Timer": lambda: lightnings.Timer(datetime.timedelta(hours=1)),
}
LISTS: dict[str, Make] = {
    **{name: lambda make=make: [make()] for name, make in WORKING.items()},  # type: ignore[misc]
    "stops on validation": lambda: [
        lightnings.EarlyStopping("val/loss", patience=1, check_on_train_epoch_end=False), Counter()
    ],
    "stops on a logged value": lambda: [
        Logs(), lightnings.EarlyStopping("largest", patience=1, min_delta=0.5)
    ],
    "Counter": lambda: [Counter()],
    "History": lambda: [History(), Checkpoints()],
    "Logs": lambda: [Logs()],
    "StopsItself": lambda: [StopsItself()],
}  # fmt: skip


def config(*more: str) -> Config:
    return compose(
        *SMALL, "trainer.max_epochs=8", "optimizer.lr=0.5", "trainer.steps_per_call=2",
        "checkpoint.every_n_steps=4", "model.dropout=0.1", *more,
    )  # fmt: skip


def comparable(callbacks: Sequence[Callback]) -> list[Any]:
    """The states, without times."""
    return [
        repr(to_plain(each.state_dict(), {"c": Colour}))
        for each in callbacks
        if not isinstance(each, lightnings.Timer)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", LISTS)
def test_killed_at_every_checkpoint_a_run_and_its_callbacks_end_the_same(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    callbacks = LISTS[name]()
    whole = fit(config(), tmp_path / "whole", callbacks=callbacks)
    die_after_writing(monkeypatch)
    died, folder = 0, tmp_path / "killed"
    while not Run(folder).result:
        others = LISTS[name]()
        try:
            fit(config(), folder, resume=True, callbacks=others)
        except Killed:
            died += 1
    assert died >= 5
    assert fingerprint(Run(folder)) == fingerprint(whole)
    if whole.result["stopped"] is None:
        assert comparable(others) == comparable(callbacks)  # the last process trained to the end
    assert list(Run(folder).history[0]) == list(whole.history[0])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["EarlyStopping", "Counter", "Logs", "StopsItself", "History"])
def test_killed_at_any_hook_a_run_and_its_callbacks_end_the_same(name: str, tmp_path: Path) -> None:
    whole = fit(config(), tmp_path / "whole", callbacks=LISTS[name]())

    class Dies(Callback):
        def __init__(self, calls: int) -> None:
            self.left = calls

        def count(self, *_: Any) -> None:
            self.left -= 1
            if self.left == 0:
                raise Killed

    for hook in ("train_batch_end", "train_epoch_start", "train_epoch_end", "validation_end"):
        setattr(Dies, f"on_{hook}", Dies.count)

    folder = tmp_path / "killed"
    for calls in itertools.cycle([9, 5, 14, 7, 11]):
        try:
            fit(config(), folder, resume=True, callbacks=[*LISTS[name](), Dies(calls + 6)])
            break
        except Killed:
            pass
    assert fingerprint(Run(folder)) == fingerprint(whole)


class OnRanks(Counter):
    """Writes what each rank has counted in the end. In the first process that counts so many
    batches on a rank, the rank is killed."""

    def __init__(self, folder: Path, dies: tuple[int, int] | None = None) -> None:
        super().__init__()
        self.folder, self.dies, self.rank = folder, dies, -1

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "rank": self.rank}

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.rank = trainer.global_rank

    def on_train_batch_end(self, *_: Any) -> None:
        super().on_train_batch_end()
        if (self.rank, self.counts["batches"]) == self.dies:
            with suppress(FileExistsError):
                (self.folder / "died").touch(exist_ok=False)
                os.kill(os.getpid(), signal.SIGKILL)

    def on_fit_end(self, *_: Any) -> None:
        (self.folder / f"rank{self.rank}").write_text(json.dumps(self.counts))


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("restarts", [0, 1])
def test_on_two_ranks_a_killed_run_and_its_callbacks_end_the_same(
    rank: int, restarts: int, tmp_path: Path
) -> None:
    """Whether the ranks start again or the run is resumed. Rank 0 saves its state, once."""
    both = config("trainer.devices=2", "trainer.strategy=ddp", f"trainer.max_restarts={restarts}")
    runs, counted = [], []
    for name, dies in (("whole", None), ("killed", (rank, 13))):
        seen, run = tmp_path / f"{name}-seen", Run(tmp_path / name)
        seen.mkdir()
        train = partial(fit, both, run.folder, callbacks=[OnRanks(seen, dies)])
        if dies and not restarts:
            with pytest.raises(RankKilledError, match=r"rank [01] .* ended"):
                train()
            assert [path.name for path in seen.iterdir()] == ["died"]
        train(resume=bool(dies and not restarts))
        assert (seen / "died").exists() == bool(dies)
        counted.append([json.loads((seen / f"rank{number}").read_text()) for number in range(2)])
        (stored,) = checkpoint.read(run.last_checkpoint)["user_callbacks"].values()
        state = from_plain(stored, {})
        assert (state["rank"], dict(state["counts"])) == (0, counted[-1][0])
        runs.append(run)
    assert counted[0][0]["epochs"] == 8
    assert counted[0][0]["batches"] > 2 * 13
    assert [*counted[0], *counted[1]] == 4 * [counted[0][0]]
    assert fingerprint(runs[0]) == fingerprint(runs[1])


def test_early_stopping_is_lightnings(tmp_path: Path) -> None:
    """Against the plain rule on the history of a run that nothing stopped."""
    found = [row["val/acc"] or 0 for row in fit(config(), tmp_path / "whole").history[1:]]
    ends = next(n for n in range(2, 9) if found[n - 1] <= max(found[: n - 1]))
    assert ends < 8
    stopper = lightnings.EarlyStopping("val/acc", mode="max", patience=1)
    run = fit(config(), tmp_path / "run", callbacks=[stopper])
    assert [row["val/acc"] for row in run.history[1:]] == found[:ends]
    assert (run.result["epochs"], run.result["steps"], run.result["stopped"]) == (
        ends, run.history[-1]["step"], "callback",
    )  # fmt: skip
    assert checkpoint.read(run.last_checkpoint)["position"] == {"epoch": ends, "batch": 0}
    assert "a callback (EarlyStopping) has stopped the run" in run.log_file.read_text()
    more = fit(config("trainer.max_epochs=9"), run.folder, resume=True, callbacks=[stopper])
    assert (more.result["epochs"], more.result["stopped"]) == (ends, "callback")


@pytest.mark.parametrize("patience", [1, 99])
def test_the_callback_that_has_stopped_a_run_is_named(patience: int, tmp_path: Path) -> None:
    """StopsItself stops in epoch 4 where EarlyStopping has not stopped before."""
    stopper = lightnings.EarlyStopping("train/loss", mode="max", patience=patience)
    run = fit(config(), tmp_path / "run", callbacks=[StopsItself(), stopper])
    name = "EarlyStopping" if patience == 1 else "StopsItself"
    assert f"a callback ({name}) has stopped the run" in run.log_file.read_text()


def test_a_run_that_a_callback_ends_within_an_epoch_agrees_with_itself(tmp_path: Path) -> None:
    run = fit(config(), tmp_path / "run", callbacks=[StopsItself()])
    # An epoch has 7 blocks, 5 of two batches and 2 of one: the 23rd ends batch 4 of epoch 4.
    result, last = run.result, run.history[-1]
    assert (result["epochs"], result["steps"], result["stopped"]) == (4, 3 * 12 + 4, "callback")
    assert (last["epoch"], last["step"]) == (4, 40)
    assert result["last"]["epoch"] == 4
    assert checkpoint.read(run.last_checkpoint)["position"] == {"epoch": 3, "batch": 4}


def test_a_callback_that_stops_before_the_first_step_is_told(tmp_path: Path) -> None:
    class Stops(Callback):
        def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
            trainer.should_stop = True

    for number, callback in enumerate([Stops(), lightnings.Timer(datetime.timedelta(0))]):
        with pytest.raises(InputError, match="a callback has stopped the run before"):
            fit(config(), tmp_path / str(number), callbacks=[callback])


def test_what_is_logged_has_columns_with_the_right_numbers(tmp_path: Path) -> None:
    """Against sums over the batches, whose losses a callback notes."""
    noted: list[list[tuple[float, int]]] = []

    class Notes(Callback):
        def on_train_epoch_start(self, *_: Any) -> None:
            noted.append([])

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, *_: Any) -> None:
            losses: Tensor = outputs["losses"]
            noted[-1].append((float(losses.mean()), len(losses)))

    run = fit(config("logger=tensorboard"), tmp_path / "run", callbacks=[Notes(), Logs()])
    header, *_ = run.history_file.read_text().splitlines()
    names = [
        "before",
        "mean",
        "largest",
        "sum",
        "number",
        "last",
        "first",
        "first of epoch",
        "late",
    ]
    assert header == ",".join([*HISTORY, *names])
    assert [run.history[0][name] for name in names] == [None] * 9
    for epoch, (row, blocks) in enumerate(zip(run.history[1:], noted, strict=True)):
        losses, counts = zip(*blocks, strict=True)
        mean = sum(loss * count for loss, count in blocks) / sum(counts)
        expected = [mean, max(losses), sum(losses), len(blocks), losses[-1], losses[0], losses[0]]
        assert [row[name] for name in names[1:-1]] == pytest.approx(expected, rel=1e-6)
        assert row["late"] == (epoch or None)
        before = run.history[epoch]["val/acc"] if epoch else -1
        assert row["before"] == pytest.approx(before)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run.folder / "tensorboard")).Reload()
    logged = [event.value for event in events.Scalars("mean")]
    assert logged == pytest.approx([row["mean"] for row in run.history[1:]])


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("val/acc", "the history keeps this column for itself"),
        ("lr", "the history keeps this column for itself"),
        ("val/f1", "the history keeps this column for itself"),
        ("a,b", "is not a name for a column"),
        ("=cmd()", "is not a name for a column"),
        ("x" * 61, "is not a name for a column"),
    ],
)
def test_a_name_that_cannot_be_a_column_is_told(name: str, told: str, tmp_path: Path) -> None:
    class Wrong(Callback):
        def on_train_batch_end(self, *_: Any) -> None:
            self.log(name, 1.0)  # type: ignore[attr-defined]

    with pytest.raises(InputError, match=told):
        fit(config(), tmp_path / "run", callbacks=[Wrong()])


def test_too_many_names_are_told(tmp_path: Path) -> None:
    class Many(Callback):
        def on_train_epoch_end(self, *_: Any) -> None:
            self.log_dict(  # type: ignore[attr-defined]
                {f"value {number}": 0.1 for number in range(number_of)}
            )

    number_of = 64
    run = fit(compose(*SMALL), tmp_path / "run", callbacks=[Many()])
    assert run.history[-1]["value 63"] == pytest.approx(0.1)
    number_of = 65
    with pytest.raises(InputError, match="65 names were logged, and the history takes 64"):
        fit(compose(*SMALL), tmp_path / "other", callbacks=[Many()])


@pytest.mark.parametrize("name", lightnings.__all__)
def test_every_callback_of_lightning_works_or_is_refused_in_a_line(name: str) -> None:
    """A new one of Lightning fails here: it belongs to WORKING or to REFUSED."""
    kind: type[Callback] = getattr(lightnings, name)
    if name in WORKING:
        require_usable([WORKING[name]()], config())
        assert name in LISTS
        return
    reason = next(text for refused, text in REFUSED.items() if issubclass(kind, refused))
    for made in (kind, type("Mine", (kind,), {})):
        with pytest.raises(InputError) as error:
            require_usable([object.__new__(made)], config())
        told = str(error.value)
        assert told.startswith(f"callbacks: {made.__name__}")
        assert told.endswith(reason)
        assert "\n" not in told


@pytest.mark.parametrize("key", [text for text in REFUSED.values() if text.startswith("type ")])
def test_the_keys_that_replace_a_callback_exist(key: str) -> None:
    for text in key.removeprefix("type ").replace(" and ", ", ").split(", "):
        name, _, value = text.partition("=")
        values = {"start_from": "null", "freeze": "[]"}
        compose(f"{name}={values.get(name, value)}" if value else f"{name}={_default(name)}")


def _default(name: str) -> str:
    section, key = name.split(".")
    value = compose().to_primitives()[section][key]
    return "null" if value is None else str(value)


class Backward(Callback):
    def on_before_optimizer_step(self, *_: Any) -> None:
        """Would never be called."""


@pytest.mark.parametrize(
    ("callbacks", "more", "told"),
    [
        ([Backward()], (), "Backward.on_before_optimizer_step would never be called"),
        (
            [lightnings.LambdaCallback(on_after_backward=print)],
            (),
            "LambdaCallback.on_after_backward would never be called",
        ),
        ([Counter(), Counter()], (), "two have the state_key Counter"),
        ([Counter], (), "Counter is not an instance of a subclass of lightning.pytorch.Callback"),
        (["EarlyStopping"], (), "'EarlyStopping' is not an instance"),
        (Counter(), (), r"callbacks: is not a list; type fit\(config, callbacks=\[...\]\)"),
        (
            [lightnings.Timer()],
            ("trainer.max_time='00:01:00:00'",),
            "Timer and trainer.max_time exclude each other",
        ),
        (
            [lightnings.EarlyStopping("val_loss")],
            (),
            r"EarlyStopping\('val_loss'\): must be one of train/loss, train/acc, val/loss, "
            r"val/acc; did you mean val/loss\?",
        ),
        ([lightnings.EarlyStopping("x")], ("checkpoint.monitor=val/f1",), "val/acc, val/f1$"),
        ([Backward(), lightnings.ModelCheckpoint()], (), "2 faults, and nothing was trained"),
    ],
)
def test_others_that_cannot_work_are_refused_before_a_folder_is_made(
    callbacks: Any, more: tuple[str, ...], told: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=told):
        fit(config(*more), tmp_path / "run", callbacks=callbacks)
    assert not (tmp_path / "run").exists()


class Holds(Callback):
    def __init__(self, value: Any) -> None:
        self.value = value

    def state_dict(self) -> dict[str, Any]:
        return {"scores": [1, self.value]}


def test_a_state_that_cannot_be_kept_is_named_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError) as error:
        fit(config(), tmp_path / "run", callbacks=[Counter(), Holds(Counter())])
    assert str(error.value) == (
        "callbacks: the state of Holds cannot be kept in a checkpoint: state_dict()['scores'][1] "
        "is a Counter; return numbers, texts, lists, dictionaries, arrays or tensors from "
        "state_dict, or {} to train without the state"
    )
    assert [row["epoch"] for row in Run(tmp_path / "run").history] == [0]
    monkeypatch.setattr(Holds, "state_dict", lambda _: {})
    run = fit(compose(*SMALL), tmp_path / "other", callbacks=[Holds(Counter())])
    assert checkpoint.read(run.last_checkpoint)["user_callbacks"] == {}


def test_a_state_that_becomes_unfit_leaves_the_last_checkpoint(tmp_path: Path) -> None:
    class Changes(Holds):
        def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
            self.value = print if trainer.current_epoch == 2 else trainer.current_epoch

    with pytest.raises(InputError, match="is a builtin_function_or_method"):
        fit(config(), tmp_path / "run", callbacks=[Changes(0)])
    assert checkpoint.read(Run(tmp_path / "run").last_checkpoint)["position"]["epoch"] == 2
    assert fit(config(), tmp_path / "run", resume=True).result["epochs"] == 8


def test_what_a_callback_adds_to_a_checkpoint_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Adds(Callback):
        def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: Any) -> None:
            checkpoint["mine"] = {"seen": {1, 2}, "at": added}

        def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: Any) -> None:
            loaded.append(checkpoint["mine"])

    added, loaded = datetime.date(2026, 1, 2), list[Any]()
    undo = die_after_writing(monkeypatch)
    with pytest.raises(Killed):
        fit(config(), tmp_path / "run", callbacks=[Adds()])
    undo()
    fit(config(), tmp_path / "run", resume=True, callbacks=[Adds()])
    assert loaded == [{"seen": {1, 2}, "at": added}]
    added = print  # type: ignore[assignment]
    with pytest.raises(InputError, match=r"mine\['at'\] is a builtin_function_or_method"):
        fit(config(), tmp_path / "other", callbacks=[Adds()])


def test_a_run_without_its_callback_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    undo = die_after_writing(monkeypatch)
    with pytest.raises(Killed):
        fit(config(), tmp_path / "run", callbacks=[Counter()])
    undo()
    with caplog.at_level(logging.WARNING):
        fit(config(), tmp_path / "run", resume=True)
    assert "callbacks: Counter: the run had this callback, and goes on without it" in caplog.text


@pytest.mark.slow
def test_a_checkpoint_that_is_older_than_these_fields_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There, the states of all callbacks lay side by side, and nothing was logged."""
    whole = fit(config(), tmp_path / "whole", callbacks=[Holds(2)])
    undo = die_after_writing(monkeypatch)
    with pytest.raises(Killed):
        fit(config(), tmp_path / "run", callbacks=[Holds(2)])
    undo()
    run, loaded = Run(tmp_path / "run"), list[Any]()
    content = checkpoint.read(run.last_checkpoint)
    del content["logged"], content["callbacks"]["History"]["logged"]
    content["callbacks"] |= content.pop("user_callbacks")
    assert set(content["callbacks"]) == {"History", "Checkpoints", "Holds"}
    checkpoint.write(content, run.last_checkpoint)
    holds = Holds(2)
    holds.load_state_dict = loaded.append  # type: ignore[method-assign,assignment]
    fit(config(), run.folder, resume=True, callbacks=[holds])
    assert loaded == [{"scores": [1, 2]}]
    assert fingerprint(run) == fingerprint(whole)


def test_an_interrupted_stack_keeps_the_epochs_of_a_trial_that_had_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trial 1 learns nothing, so it stops after epoch 2; trial 2 diverges in epoch 1."""
    row = OurHistory.on_train_epoch_end

    def interrupted(self: OurHistory, trainer: Trainer, module: StackModule) -> None:
        row(self, trainer, module)
        if trainer.current_epoch == 3:
            raise Interrupted(15)

    monkeypatch.setattr(OurHistory, "on_train_epoch_end", interrupted)
    common = (*SMALL, "trainer.max_epochs=9", "trainer.early_stopping_patience=1")
    rates = (1e-12, 0.1, 1e6)
    configs = [compose(*common, f"optimizer.lr={rate}") for rate in rates]
    folders = [tmp_path / str(number) for number in range(3)]
    with pytest.raises(Interrupted, match="stopped after 4 epochs, 48 steps"):
        fit_stack(configs, folders, tmp_path / "stack")
    results = [Run(folder).result for folder in folders]
    assert {result["status"] for result in results} == {"interrupted"}
    assert [result["epochs"] for result in results] == [2, 4, 1]
    assert [result["steps"] for result in results[:2]] == [24, 48]
    assert 0 < results[2]["steps"] <= 12
