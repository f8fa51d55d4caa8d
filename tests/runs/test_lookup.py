"""Folders by short names."""

import os
import random
from pathlib import Path

import pytest

from src.runs.folder import CONFIRMATION, RANGE_TEST, SEARCH, Run
from src.runs.labels import Change, write_labels
from src.runs.lookup import (
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
    find,
    kind_of,
    require_runs,
    units,
    with_name,
)
from src.system.errors import InputError
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
    write_labels(three[1], Change(name="base"))
    assert find(text) == three[place]


def test_a_whole_name_goes_before_a_beginning(three: list[Path]) -> None:
    write_labels(three[0], Change(name="base"))
    write_labels(three[1], Change(name="base-2"))
    assert find("base") == three[0]
    assert find("base-") == three[1]


def test_several_matches_are_listed(three: list[Path]) -> None:
    with pytest.raises(InputError, match=r"10-00: may be one of 2 folders; .*10-00-00.*10-00-05"):
        find("10-00")
    for folder in three:
        write_labels(folder, Change(name="same"))
    with pytest.raises(InputError, match="may be one of 3 folders"):
        find("same")


def test_a_trial_of_a_named_sweep(three: list[Path]) -> None:
    folder = sweep("sweeps/2026-01-04/08-00-00.000000")
    write_labels(folder, Change(name="rates"))
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
        write_labels(folder, Change(name="same"))
    write_labels(three[2], Change(name="same-2"))
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
    write_labels(three[1], Change(name="base"))
    assert find("base") == three[1]
    assert find("10-00-00") == three[0]


@pytest.mark.parametrize("seed", range(10))
def test_random_names_and_beginnings(seed: int) -> None:
    """The rule, written out: the whole name, or else each folder of which a text begins so; of
    several those that the command can use, if there are any."""
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
        write_labels(folder, Change(name=name))
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
            else:
                with pytest.raises(InputError, match=f"may be one of {len(meant)} folders"):
                    find(text, use)


def test_a_failed_run_takes_no_name_from_its_repetition(three: list[Path]) -> None:
    """Every use of the model, not the commands that any folder suits."""
    failed = without_weights("runs/2026-01-04/08-00-00.0", "failed")
    for folder in (three[0], failed):
        write_labels(folder, Change(name="own"))
    for use in (MODEL, FINISHED, RESUMED, REPORTED, WATCHED):
        assert find("own", use) == three[0]
    with pytest.raises(InputError, match="own: may be one of 2 folders"):
        find("own", ANY)
    Run(three[0]).remove_checkpoints(but_best=False)
    with pytest.raises(InputError, match="own: may be one of 2 folders"):
        find("own", MODEL)


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
