"""Which settings of a sweep are confirmed, with which seeds, and what is refused."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from kindling.records.confirm_record import read_record, trials, write_record
from kindling.records.folder import Run, resume_command
from kindling.sweeps.command_line import check_command_line as train_command_line
from kindling.sweeps.confirmation.command import (
    CheckedConfirmation,
    check_command_line,
    fresh_seeds,
    identity,
)
from kindling.system.errors import InputError
from tests.helpers.commands import require_told_without_torch
from tests.helpers.confirmations import begun, pretended_sweep, settle
from tests.helpers.searches import refusal

Point = tuple[tuple[str, ...], float | None]


def point(rate: float, seed: int, value: float | None, *more: str) -> Point:
    return (f"optimizer.lr={rate}", f"seed={seed}", *more), value


POINTS = (
    point(0.1, 0, 0.80), point(0.1, 1, 0.90),
    point(0.3, 0, 0.95), point(0.3, 1, 0.65),  # the best trial, but not the best setting
    point(0.5, 0, 0.70), point(0.5, 4, None),
)  # fmt: skip


def written(command: CheckedConfirmation) -> CheckedConfirmation:
    """As if the confirmation had begun."""
    command.folder.mkdir()
    write_record(command.folder, command.record)
    return command


def test_settings_are_ranked_by_their_mean_over_seeds(tmp_path: Path) -> None:
    sweep = pretended_sweep(tmp_path / "s", *POINTS)
    begun(sweep, 6, "optimizer.lr=0.7", "seed=11")
    found = check_command_line(sweep, 2, 3)
    assert found.folder == sweep / "confirm"
    record = found.record
    assert (record.found, record.keys, record.monitor) == (3, ["optimizer.lr"], "val/acc")
    assert record.seeds == [12, 13, 14]  # a seed of a trial without a result counts as used
    assert [chosen.promised for chosen in record.settings] == pytest.approx([0.85, 0.80])
    assert [chosen.trials for chosen in record.settings] == [[0, 1], [2, 3]]
    assert [record.values(chosen) for chosen in record.settings] == [
        {"optimizer.lr": "0.1"}, {"optimizer.lr": "0.3"},
    ]  # fmt: skip
    assert [chosen.config.optimizer.lr for chosen in record.settings] == [0.1, 0.3]
    assert "seed" not in record.settings[0].overrides
    # A diverged trial has no value. All settings are taken if there are fewer than asked for.
    every = check_command_line(sweep, 50, 2).record.settings
    assert [(chosen.promised, chosen.trials) for chosen in every[2:]] == [(0.7, [4])]
    usual = check_command_line(sweep).record
    assert (len(usual.settings), len(usual.seeds)) == (3, 20)


def test_of_a_halved_sweep_the_longest_trials_count(tmp_path: Path) -> None:
    """Values of fewer epochs promise nothing: settings that halving kept come first."""
    sweep = pretended_sweep(
        tmp_path / "s",
        point(0.1, 0, 0.50), point(0.1, 1, 0.20),  # the second is dropped after an epoch
        point(0.3, 0, 0.60), point(0.3, 1, 0.70),  # both after two epochs
        point(0.5, 0, 0.65), point(0.5, 1, 0.25),  # after two epochs and one
    )  # fmt: skip
    # The first stopped early, which is no reason to distrust its value.
    for number, epochs in enumerate((1, 1, 2, 2, 2, 1)):
        run = Run(sweep / str(number))
        stopped = "halving" if number else "early_stopping"
        run.write_result(run.result | {"stopped": stopped, "epochs": epochs})
    chosen = check_command_line(sweep, 3, 2).record.settings
    assert [each.promised for each in chosen] == pytest.approx([0.50, 0.65, 0.65])
    assert sorted(each.trials for each in chosen) == [[0], [2, 3], [4]]
    assert chosen[0].trials == [0]


def test_the_least_loss_is_the_best(tmp_path: Path) -> None:
    loss = ("checkpoint.monitor=val/loss", "checkpoint.mode=min")
    sweep = pretended_sweep(
        tmp_path / "s", point(0.1, 0, 0.3, *loss), point(0.3, 0, 0.2, *loss),
        point(0.5, 0, 0.2, *loss),
    )  # fmt: skip
    record = check_command_line(sweep, 3, 2).record
    assert [chosen.trials for chosen in record.settings] == [[1], [2], [0]]


def test_only_the_seed_and_where_the_data_lie_repeat_a_setting(tmp_path: Path) -> None:
    changes = ((), ("seed=3",), ("data.root=elsewhere",), ("checkpoint.keep=best",))
    same = {identity(begun(tmp_path, n, *change)[1]) for n, change in enumerate(changes)}
    assert len(same) == 1
    others = ("data.split_seed=3", "trainer.max_epochs=3", "model.dropout=0.1", "optimizer=adam")
    different = {identity(begun(tmp_path, 4 + n, change)[1]) for n, change in enumerate(others)}
    assert len(different | same) == 5


def test_fresh_seeds_are_never_used_ones() -> None:
    assert fresh_seeds({0, 7, 3}, 3) == [8, 9, 10]
    assert fresh_seeds({2**32 - 3}, 2) == [2**32 - 2, 2**32 - 1]
    assert fresh_seeds({2**32 - 2}, 2) == [0, 1]
    assert fresh_seeds({2**32 - 1, 0, 2}, 3) == [1, 3, 4]


def test_a_sweep_over_the_seed_alone_has_one_setting(tmp_path: Path) -> None:
    sweep = pretended_sweep(tmp_path / "s", point(0.1, 0, 0.8), point(0.1, 1, 0.9))
    record = check_command_line(sweep).record
    assert (record.found, record.keys, len(record.settings)) == (1, [], 1)


def test_without_the_typed_overrides_the_configurations_tell(tmp_path: Path) -> None:
    sweep = pretended_sweep(tmp_path / "s", *POINTS)
    for file in sweep.glob("*/.hydra/overrides.yaml"):
        file.unlink()
    record = check_command_line(sweep, 1).record
    assert record.keys == ["optimizer.lr"]
    assert record.values(record.settings[0]) == {"optimizer.lr": "0.1"}


# --- folds ---------------------------------------------------------------------------------------


def folded(rate: float, values: Sequence[float | None], *more: str, folds: int = 3) -> list[Point]:
    """The trials of a setting on the first folds."""
    return [
        point(rate, 0, value, f"data.folds={folds}", f"data.fold={fold}", *more)
        for fold, value in enumerate(values)
    ]


def test_seeds_take_turns_on_the_folds(tmp_path: Path) -> None:
    sweep = pretended_sweep(
        tmp_path / "s",
        *folded(0.1, (0.9, 0.8, 0.7)),
        *folded(0.3, (0.6, 1.0, 0.95)),
    )
    record = check_command_line(sweep, 2, 5).record
    assert (record.folds, record.seeds) == (3, [1, 2, 3, 4, 5])
    assert (record.found, record.keys) == (2, ["optimizer.lr"])
    assert [chosen.promised for chosen in record.settings] == pytest.approx([0.85, 0.8])
    assert [chosen.trials for chosen in record.settings] == [[3, 4, 5], [0, 1, 2]]
    assert record.settings[0].overrides["data.folds"] == "3"
    assert not {"seed", "data.fold"} & {*record.settings[0].overrides}
    for of_setting in trials(sweep / "confirm", record):
        assert [(trial.config.seed, trial.config.data.fold) for trial in of_setting] == [
            (1, 0), (2, 1), (3, 2), (4, 0), (5, 1),
        ]  # fmt: skip


def test_a_fold_counts_once_however_many_seeds_it_has(tmp_path: Path) -> None:
    points = folded(0.1, (0.9, 0.6), folds=2)
    more = point(0.1, 1, 0.8, "data.folds=2", "data.fold=1")
    record = check_command_line(pretended_sweep(tmp_path / "s", *points, more)).record
    assert record.settings[0].promised == pytest.approx((0.9 + (0.6 + 0.8) / 2) / 2)


def test_settings_with_gaps_come_last(tmp_path: Path) -> None:
    """A mean that leaves a fold or a diverged seed out may be too good."""
    sweep = pretended_sweep(
        tmp_path / "s",
        *folded(0.1, (0.95, 0.96)),  # not finished on the last fold
        *folded(0.3, (0.7, 0.7, 0.7)),
        *folded(0.5, (0.99, None, 0.99)),
        *folded(0.7, (0.6, 0.6, 0.6)),
    )
    record = check_command_line(sweep, 4).record
    assert [chosen.config.optimizer.lr for chosen in record.settings] == [0.3, 0.7, 0.5, 0.1]
    seeds = pretended_sweep(
        tmp_path / "seeds", point(0.1, 0, 0.9), point(0.1, 1, None), point(0.3, 0, 0.5)
    )
    ranked = check_command_line(seeds).record.settings
    assert [chosen.config.optimizer.lr for chosen in ranked] == [0.3, 0.1]


def test_a_sweep_over_some_folds_is_confirmed_on_all(tmp_path: Path) -> None:
    sweep = pretended_sweep(tmp_path / "s", *folded(0.1, (0.5, 0.6)), *folded(0.3, (0.9,)))
    record = check_command_line(sweep).record
    assert record.fold_of[:4] == [0, 1, 2, 0]
    assert [chosen.config.optimizer.lr for chosen in record.settings] == [0.1, 0.3]


def test_a_sweep_on_one_fold_is_confirmed_there(tmp_path: Path) -> None:
    sweep = pretended_sweep(tmp_path / "s", *folded(0.1, (0.5,)), *folded(0.3, (0.9,)))
    record = check_command_line(sweep, 2, 2).record
    assert (record.folds, record.fold_of) == (None, [])
    assert record.settings[0].overrides["data.fold"] == "0"
    for of_setting in trials(sweep / "confirm", record):
        assert [trial.config.data.fold for trial in of_setting] == [0, 0]


def test_each_fold_needs_a_seed(tmp_path: Path) -> None:
    sweep = pretended_sweep(tmp_path / "s", *folded(0.1, (0.5, 0.6), folds=30))
    assert len(check_command_line(sweep).record.seeds) == 30
    assert refusal(lambda: check_command_line(sweep, None, 4)) == (
        f"--seeds 4: the trials of {sweep} have data.folds=30, and each fold needs a seed; type "
        "--seeds 30 or more"
    )


def test_a_cross_validation_that_goes_on_is_another_confirmation(tmp_path: Path) -> None:
    """Until its first trial on a second fold, a sweep has one fold."""
    sweep = pretended_sweep(tmp_path / "s", *folded(0.1, (0.5,)))
    folder = written(check_command_line(sweep, 1, 3)).folder
    settle(*begun(sweep, 1, "optimizer.lr=0.1", "data.folds=3", "data.fold=1"), 0.6)
    assert "its sweep has changed since then" in refusal(lambda: check_command_line(sweep, 1, 3))
    assert check_command_line(folder).record.folds is None


def test_different_numbers_of_folds(tmp_path: Path) -> None:
    sweep = pretended_sweep(
        tmp_path / "s", *folded(0.1, (0.5, 0.6)), *folded(0.1, (0.5, 0.6), folds=2)
    )
    assert refusal(lambda: check_command_line(sweep)) == (
        f"{sweep}: its trials have different data.folds (3 in trial 0, 2 in trial 2), so seeds "
        "cannot take turns on the folds; confirm sweeps with one data.folds each"
    )
    mixed = pretended_sweep(tmp_path / "m", *folded(0.1, (0.5,)), point(0.1, 0, 0.9))
    assert "data.folds (3 in trial 0, null in trial 1)" in refusal(
        lambda: check_command_line(mixed)
    )
    one = pretended_sweep(tmp_path / "one", *folded(0.1, (0.5,)), *folded(0.1, (0.6,), folds=2))
    assert check_command_line(one).record.keys == ["data.folds"]


# --- the folder ----------------------------------------------------------------------------------


def test_the_same_command_continues(tmp_path: Path) -> None:
    sweep = pretended_sweep(tmp_path / "s", *POINTS)
    begun_ = written(check_command_line(sweep, 2, 3))
    assert check_command_line(sweep, 2, 3) == begun_
    assert check_command_line(begun_.folder) == begun_
    assert resume_command(begun_.folder) == f"python -m src.confirm {begun_.folder}"
    other = check_command_line(sweep, 2, 4, tmp_path / "other")
    assert other.folder == tmp_path / "other"
    shutil.move(begun_.folder, tmp_path / "moved")
    shutil.rmtree(sweep)
    assert check_command_line(tmp_path / "moved").record == begun_.record


def test_another_confirmation_in_the_folder(tmp_path: Path) -> None:
    sweep = pretended_sweep(tmp_path / "s", *POINTS)
    folder = written(check_command_line(sweep, 2, 3)).folder
    advice = (
        f"; type python -m src.confirm {folder} to continue it, or --output FOLDER to begin a new "
        "one"
    )
    assert refusal(lambda: check_command_line(sweep, 1, 4)) == (
        f"{folder}: holds another confirmation (it confirms 2 settings with 3 seeds, not 1 setting "
        f"with 4 seeds){advice}"
    )
    settle(*begun(sweep, 6, "optimizer.lr=0.7", "seed=0"), 0.99)
    assert refusal(lambda: check_command_line(sweep, 2, 3)) == (
        f"{folder}: holds another confirmation (its sweep has changed since then){advice}"
    )
    for given in ({"top": 2}, {"seeds": 3}, {"output": Path("o")}):
        text = refusal(lambda given=given: check_command_line(folder, **given))  # type: ignore[misc]
        assert text == (
            f"{folder}: is a confirmation, which continues as it was; leave out "
            f"--{next(iter(given))}, or name its sweep"
        )


def test_train_says_who_continues_a_confirmation(tmp_path: Path) -> None:
    folder = written(check_command_line(pretended_sweep(tmp_path / "s", *POINTS), 2, 3)).folder
    begun_ = begun(folder, 0)[0].folder
    (folder / "multirun.yaml").unlink()
    for given in (folder, begun_):
        text = refusal(lambda given=given: train_command_line([f"resume={given}"]))  # type: ignore[misc]
        assert text.endswith(f"type python -m src.confirm {folder}")
    text = refusal(lambda: train_command_line(["-m", "seed=1,2", f"hydra.sweep.dir={folder}"]))
    assert "holds a sweep already (confirm.yaml)" in text


def test_a_folder_of_something_else(tmp_path: Path) -> None:
    sweep = pretended_sweep(tmp_path / "s", *POINTS)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter").write_text("mine")
    text = refusal(lambda: check_command_line(sweep, output=tmp_path / "full"))
    assert text.startswith(f"{tmp_path / 'full'}: holds letter, not a confirmation; type --output")
    for file in (tmp_path / "full" / "letter", tmp_path / "link"):
        if not file.exists():
            file.symlink_to(tmp_path)
        text = refusal(lambda file=file: check_command_line(sweep, output=file))  # type: ignore[misc]
        assert text == f"{file}: is not a folder; type --output FOLDER to name another one"
    (sweep / "confirm").mkdir()
    (sweep / "confirm" / ".confirm.json.part").symlink_to(tmp_path / "full" / "letter")
    assert "is a link to" in refusal(lambda: check_command_line(sweep))


# --- what cannot be confirmed --------------------------------------------------------------------


@pytest.mark.slow
def test_one_line_without_torch(tmp_path: Path) -> None:
    sweep = str(pretended_sweep(tmp_path / "s", *POINTS))
    begun(tmp_path / "begun", 0)
    run, _ = begun(tmp_path / "r", 0)
    (tmp_path / "r" / "multirun.yaml").unlink()
    (tmp_path / "empty").mkdir()
    monitors = pretended_sweep(
        tmp_path / "monitors", point(0.1, 0, 0.8),
        point(0.1, 1, 0.8, "checkpoint.monitor=val/loss", "checkpoint.mode=min"),
    )  # fmt: skip
    sets = pretended_sweep(tmp_path / "sets", point(0.1, 0, 0.8), point(0.1, 0, 0.8, "data=toy"))
    damaged = pretended_sweep(tmp_path / "damaged", *POINTS)
    file = damaged / "3" / ".hydra" / "config.yaml"
    file.write_text(file.read_text().replace("lr: 0.3", "lr: -1"))
    names = "name the folder of a sweep or a search, for example sweeps/DATE/TIME"
    told = {
        (f"{tmp_path}/none",): "there is no such folder; name a sweep, sweeps/DATE/TIME",
        (f"{tmp_path}/empty",): f"{tmp_path}/empty: is not a sweep; {names}",
        (str(run.folder),): f"{run.folder}: is one run; {names}",
        (f"{sweep}/0",): f"{sweep}/0: is a trial; name its sweep, {sweep}",
        (f"{tmp_path}/begun",): "begun: no trial has finished; type python -m src.train resume=",
        (str(monitors),): "its trials have different checkpoint.monitor (val/acc in trial 0, "
        "val/loss in trial 1), so their values cannot be compared",
        (str(sets),): "its trials have different data (digits in trial 0, toy in trial 1)",
        (str(damaged),): "trial 3 cannot be read; restore its file, or remove the folder of the "
        f"trial ({file}: ",
        (sweep, "--seeds", "1"): "--seeds 1: must be from 2 to 1,000, for example --seeds 20",
        (sweep, "--top", "0"): "--top 0: must be from 1 to 50, for example --top 3",
        (sweep, "--top", "51"): "--top 51: must be from 1 to 50",
    }
    require_told_without_torch("confirm", told)


def test_each_refusal_is_one_line(tmp_path: Path) -> None:
    damaged = pretended_sweep(tmp_path / "damaged", *POINTS)
    file = damaged / "3" / ".hydra" / "config.yaml"
    file.write_text(file.read_text().replace("lr: 0.3", "lr: -1").replace("seed: 0", "seed: x"))
    text = refusal(lambda: check_command_line(damaged))
    assert "optimizer.lr=-1: must be greater than 0" in text
    assert len(text.splitlines()) == 1
    os.truncate(damaged / "2" / "result.json", 10)
    text = refusal(lambda: check_command_line(damaged))
    assert text.startswith(f"{damaged / '2' / 'result.json'}: is not the result of a run")


def test_what_this_machine_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = pretended_sweep(tmp_path / "s", *POINTS)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_WORLD_SIZE", "2"),
                        ("LOCAL_RANK", "0")):  # fmt: skip
        monkeypatch.setenv(name, value)
    assert "torchrun has started this process" in refusal(lambda: check_command_line(sweep))


@pytest.mark.parametrize("field", ["sweep", "found", "keys", "seeds", "settings"])
def test_a_record_without_a_field(field: str, tmp_path: Path) -> None:
    sweep = pretended_sweep(tmp_path / "s", *POINTS)
    folder = written(check_command_line(sweep, 2, 3)).folder
    file = folder / "confirm.yaml"
    file.write_text(file.read_text().replace(f"{field}:", "other:", 1))
    with pytest.raises(InputError, match=r"confirm\.yaml: is not the record of a confirmation"):
        read_record(folder)
    refusal(lambda: check_command_line(folder))
    refusal(lambda: check_command_line(sweep, 2, 3))
