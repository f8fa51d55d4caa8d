"""Folders by short names, and which checkpoint a command takes."""

import os
import random
import re
import shutil
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from kindling.records.folder import CONFIRMATION, RANGE_TEST, SEARCH, Run
from kindling.records.labels import write_labels
from kindling.records.lookup import (
    ANY,
    COMBINED,
    CONFIRMED,
    FINISHED,
    MODEL,
    NEWEST_SWEEP,
    REPORTED,
    RESUMED,
    RESUMED_SEARCH,
    WATCHED,
    Use,
    began,
    checkpoint_of,
    date_last,
    find,
    kind_of,
    require_runs,
    timestamped,
    units,
    with_name,
)
from kindling.system.errors import InputError
from tests.helpers.runs import ended

RUNS = ("2026-01-02/10-00-00.000001", "2026-01-02/10-00-05.000000", "2026-01-03/09-00-00.000000")


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def three() -> list[Path]:
    return [ended(Path("runs", name), 0.5).folder for name in RUNS]


def sweep(folder: str, record: str = "multirun.yaml", trials: int = 2) -> Path:
    for number in range(trials):
        ended(Path(folder, str(number)), 0.5)
    Path(folder, record).write_text("")
    return Path(folder)


def test_units_are_runs_and_whole_sweeps(three: list[Path]) -> None:
    swept = sweep("sweeps/2026-01-04/08-00-00.000000")
    searched = sweep("searches/lr-1234", SEARCH)
    confirmed = sweep(f"{swept}/confirm", CONFIRMATION)
    made = ended(swept / "committee", 0.5, also={"committee": COMMITTEE}).folder
    Path("runs/2026-01-05/empty").mkdir(parents=True)
    Path("runs/link").symlink_to(Path("sweeps").absolute())
    assert set(units()) == {*three, swept, searched, confirmed, made}
    assert [kind_of(folder) for folder in (three[0], swept, searched, confirmed, made)] == [
        "run", "sweep", "search", "confirmation", "committee",
    ]  # fmt: skip
    assert kind_of(Path("runs/2026-01-05/empty")) is None
    assert list(units([swept / "0"])) == [swept / "0"]


COMMITTEE = {
    "paths": ["0"], "by": "val/acc", "best": 2, "greedy": None, "differing": [],
    "members": [{"folder": str(n), "votes": 1, "val/loss": 1.0, "val/acc": 0.5} for n in range(2)],
}  # fmt: skip


def test_what_exists_is_itself(three: list[Path]) -> None:
    for text in ("runs", str(three[0]), str(three[0].absolute()), "runs/2026-01-02"):
        assert find(text) == Path(text)
    Path("latest").mkdir()
    assert find("latest") == Path("latest")


@pytest.mark.parametrize(
    ("text", "place"),
    [("2026-01-03", 2), ("10-00-00", 0), ("2026-01-02/10-00-05", 1), ("runs/2026-01-03/0", 2),
     ("latest", 2), ("base", 1), ("ba", 1)],
)  # fmt: skip
def test_a_beginning_or_a_name_is_enough(text: str, place: int, three: list[Path]) -> None:
    write_labels(three[1], name="base")
    assert find(text) == three[place]


def test_a_wrong_name_is_told_with_the_one_that_is_alike(three: list[Path]) -> None:
    write_labels(three[1], name="baseline")
    with pytest.raises(InputError, match=r"^basline: .*; did you mean baseline\?; name a run"):
        checkpoint_of(find("basline"))
    with pytest.raises(InputError, match=r"^other: there is no such file or folder; name a run"):
        checkpoint_of(find("other"))


def test_a_whole_name_goes_before_a_beginning(three: list[Path]) -> None:
    write_labels(three[0], name="base")
    write_labels(three[1], name="base-2")
    assert find("base") == three[0]
    assert find("base-") == three[1]


def test_several_matches_are_listed(three: list[Path]) -> None:
    with pytest.raises(InputError, match=r"10-00: may be one of 2 folders; .*10-00-00.*10-00-05"):
        find("10-00")
    for folder in three:
        write_labels(folder, name="same")
    for text, use in (("same", ANY), ("same", NEWEST_SWEEP), ("sam", MODEL)):
        with pytest.raises(InputError, match="may be one of 3 folders"):
            find(text, use)


def test_a_name_of_several_means_the_newest(
    three: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Who trains again under a name means the last run."""
    for folder in three:
        write_labels(folder, name="same")
    newest = max(three, key=began)
    assert find("same", MODEL) == newest
    told = f"same: the newest of 3 folders with this name is {newest}\n"
    assert capsys.readouterr() == ("", told)
    write_labels(three[0], name="same-2")
    write_labels(newest, name="other")
    assert find("same", MODEL) == next(folder for folder in three[1:] if folder != newest)
    assert capsys.readouterr() == ("", "")


def test_a_trial_of_a_named_sweep(three: list[Path]) -> None:
    folder = sweep("sweeps/2026-01-04/08-00-00.000000")
    write_labels(folder, name="rates")
    assert find("rates/1") == folder / "1"
    assert find("latest/0") == folder / "0"
    assert find("rates/7") == Path("rates/7")
    assert find("2026-01-04/08/1") == folder / "1"


def test_the_newest_of_a_kind(three: list[Path]) -> None:
    folder = sweep("sweeps/2026-01-04/08-00-00.000000")
    assert find("latest") == find("latest", NEWEST_SWEEP) == folder
    assert find("latest", MODEL) == three[2]
    with pytest.raises(InputError, match="latest: there is no search in runs, sweeps, searches"):
        find("latest", RESUMED_SEARCH)


def without_weights(folder: str, status: str | None, *, epochs: bool = False) -> Path:
    run = ended(Path(folder), None, status=status or "finished")
    run.remove_checkpoints(but_best=False)
    if status is None:
        run.result_file.unlink()
    if epochs:
        run.history_file.write_text("epoch")
    return run.folder


def test_the_newest_that_a_command_can_use(three: list[Path]) -> None:
    """Of runs and sweeps that failed, were stopped, have only begun, or tried learning rates."""
    swept = sweep("sweeps/2026-01-04/08-00-00.0", trials=3)
    halfway = ended(Path("runs/2026-01-04/09-00-00.0"), 0.5, status="interrupted").folder
    single = sweep("sweeps/2026-01-04/10-00-00.0", trials=1)
    without_weights(f"{single}/1", "failed")
    stopped = without_weights("runs/2026-01-05/08-00-00.0", "interrupted", epochs=True)
    begun = without_weights("runs/2026-01-05/09-00-00.0", None)
    failed = without_weights("runs/2026-01-06/08-00-00.0", "failed")
    broken = Path("sweeps/2026-01-07/08-00-00.0")
    for number in range(2):
        without_weights(f"{broken}/{number}", "failed")
    (broken / "multirun.yaml").write_text("")
    (sweep("sweeps/2026-01-08/08-00-00.0") / RANGE_TEST).write_text("[]")
    newest = Path("sweeps/2026-01-08/08-00-00.0")
    assert kind_of(newest) == "lr_find"
    uses: list[tuple[Use, Path]] = [
        (MODEL, halfway), (FINISHED, three[2]), (RESUMED, begun), (WATCHED, begun),
        (REPORTED, stopped), (CONFIRMED, single), (COMBINED, swept), (ANY, newest),
        (NEWEST_SWEEP, broken),
    ]  # fmt: skip
    assert [find("latest", use) for use, _ in uses] == [folder for _, folder in uses]
    Run(failed).checkpoints.mkdir()
    Run(failed).last_checkpoint.write_text("")  # the failure came later: it can go on
    assert find("latest", RESUMED) == failed
    stacks = broken / ".stacks" / "ab"
    stacks.mkdir(parents=True)
    (stacks / "last.ckpt").write_text("")
    assert find("latest", RESUMED) == broken


def test_a_report_shows_a_committee_which_has_no_history(three: list[Path]) -> None:
    made = ended(Path("runs/2026-01-04/committee"), 0.5, also={"committee": COMMITTEE})
    made.history_file.unlink(missing_ok=True)
    assert find("latest", REPORTED) == made.folder


def test_folders_to_the_second(three: list[Path]) -> None:
    """For a removal too, and not ambiguous because of what lies in the folder of a sweep."""
    folder = sweep("sweeps/2026-01-04/08-00-00.000000")
    confirmed = sweep(f"{folder}/confirm", CONFIRMATION)
    assert find("2026-01-04/08-00-00", whole=True) == folder
    assert find("2026-01-04/08-00-00/confirm", whole=True) == confirmed
    assert find("2026-01-04/08-00", whole=True) == Path("2026-01-04/08-00")


def test_folders_with_a_name(three: list[Path]) -> None:
    for folder in three[:2]:
        write_labels(folder, name="same")
    write_labels(three[2], name="same-2")
    assert with_name("same") == three[:2]


def test_without_a_match_the_command_says_what_it_expects() -> None:
    for text in ("nix", "", ".", "../x", "/nowhere/at/all", "nix/3", "runs/2026-01-02"):
        assert find(text) == Path(text)


def test_a_folder_without_a_date_is_as_old_as_its_oldest_file() -> None:
    folder = ended(Path("runs/mine"), 0.5).folder
    os.utime(folder / ".hydra/config.yaml", (5e8, 5e8))
    assert began(folder) == 5e8


def test_damaged_labels_hide_no_other_run(three: list[Path]) -> None:
    (three[0] / "labels.json").write_text("{")
    write_labels(three[1], name="base")
    assert find("base") == three[1]
    assert find("10-00-00") == three[0]


@pytest.mark.parametrize("seed", range(10))
def test_random_names_and_beginnings(seed: int) -> None:
    """The rule, written out: the whole name, or else each folder of which a text begins so; of
    several those that the command can use, if there are any; of those with the name the newest,
    for a command that changes nothing."""
    draw = random.Random(seed)
    texts: dict[Path, list[str]] = {}
    with_weights = set()
    for number in range(8):
        day, second = draw.randint(1, 3), draw.randint(0, 59)
        folder = Path("runs", f"2026-01-0{day}", f"1{draw.randint(0, 2)}-00-{second:02}.{number}")
        if draw.random() < 0.4:
            with_weights.add(ended(folder, 0.5).folder)
        else:
            without_weights(str(folder), draw.choice(["failed", "interrupted", None]))
        name = "".join(draw.choices("ab1", k=draw.randint(1, 3)))
        write_labels(folder, name=name)
        texts[folder] = [name, str(folder), f"{folder.parent.name}/{folder.name}", folder.name]
    for _ in range(50):
        text = draw.choice(draw.choice([*texts.values()]))
        text = text[: draw.randint(1, len(text))]
        whole = [folder for folder, (name, *_) in texts.items() if name == text]
        wanted = whole or [
            f for f, all_texts in texts.items() if any(t.startswith(text) for t in all_texts)
        ]
        for use, can in ((ANY, set(texts)), (MODEL, with_weights)):
            meant = wanted if len(wanted) == 1 else [f for f in wanted if f in can] or wanted
            if os.path.lexists(text):
                assert find(text, use) == Path(text)
            elif len(meant) == 1:
                assert find(text, use) == meant[0]
            elif whole and use is MODEL:
                assert find(text, use) == max(meant, key=began)
            else:
                with pytest.raises(InputError, match=f"may be one of {len(meant)} folders"):
                    find(text, use)


def test_a_failed_run_takes_no_name_from_its_repetition(three: list[Path]) -> None:
    """Every use of the model, not the commands that any folder suits."""
    failed = without_weights("runs/2026-01-04/08-00-00.0", "failed")
    for folder in (three[0], failed):
        write_labels(folder, name="own")
    for use in (MODEL, FINISHED, RESUMED, REPORTED, WATCHED):
        assert find("own", use) == three[0]
    with pytest.raises(InputError, match="own: may be one of 2 folders"):
        find("own", ANY)
    Run(three[0]).remove_checkpoints(but_best=False)
    assert find("own", MODEL) == failed  # neither has weights, so the newest is meant


def test_runs_to_compare(three: list[Path]) -> None:
    folder = sweep("sweeps/2026-01-04/08-00-00.000000")
    require_runs(three)
    for paths, told in (
        ([three[0]], "name another run"),
        ([three[0], folder], f"is a sweep; name a trial, such as {folder}/0"),
        ([three[0], Path("nix")], "nix: is no run folder"),
    ):
        with pytest.raises(InputError, match=told):
            require_runs(paths)


@pytest.mark.parametrize("seed", range(10))
def test_latest_started_last_wherever_the_clock_goes(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hours back at the end of summer time, years back with a flat battery, or standing still."""
    draw, now = random.Random(seed), datetime(2026, 10, 25, 2, 59, 59)

    class Clock(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:  # type: ignore[override]  # noqa: ARG003
            return now

    monkeypatch.setattr("kindling.records.lookup.datetime", Clock)
    started: list[Path] = []
    for number in range(20):
        now += draw.choice([timedelta(0), timedelta(hours=-1), timedelta(days=-9000),
                            timedelta(microseconds=1), timedelta(minutes=50)])  # fmt: skip
        swept = [folder for folder in started if kind_of(folder) in ("sweep", "search")]
        kind = draw.choice(["run", "sweep", "search", *["confirm", "committee"] * bool(swept)])
        folder = {
            "run": lambda: timestamped("runs"),
            "sweep": lambda: timestamped("sweeps"),
            "search": lambda: Path("searches", str(number)),  # noqa: B023
        }.get(kind, lambda: draw.choice(swept) / kind)()  # noqa: B023
        if kind in ("confirm", "committee") and folder in started:  # made anew
            shutil.rmtree(folder)
            started.remove(folder)
        assert folder not in started
        if kind in ("run", "committee"):
            ended(folder, 0.5, also={"committee": COMMITTEE} if kind == "committee" else {})
        else:
            record = {"sweep": "multirun.yaml", "search": SEARCH, "confirm": CONFIRMATION}[kind]
            sweep(str(folder), record, trials=1)
        if folder.parts[0] == "searches" or kind in ("confirm", "committee"):
            records = (SEARCH, CONFIRMATION, ".hydra/config.yaml")
            date_last(next(folder / name for name in records if (folder / name).exists()))
        assert find("latest") == folder
        started.append(folder)
        if draw.random() < 0.2:  # a folder as an older version, or the user, has named it
            other = Path("searches", f"old{number}")
            other.mkdir(parents=True)
            (other / SEARCH).write_text("")
            moment = began(folder) + draw.choice([-5.0, 5.0])
            os.utime(other / SEARCH, (moment, moment))
    assert sorted(started, key=began) == started
    dated = [folder for folder in started if folder.parts[0] == "runs"]
    assert sorted(dated) == dated


def test_a_name_beyond_the_calendar_stops_no_run() -> None:
    for name in ("9999-12-31/23-59-59.999999", "0001-01-01/00-00-00.000000", "2026-13-45/99-99-99"):
        ended(Path("runs", name), 0.5)
    folder = timestamped("runs")
    assert re.fullmatch(r"runs/\d{4}-\d\d-\d\d/\d\d-\d\d-\d\d\.\d{6}", str(folder))
    assert not folder.exists()


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
