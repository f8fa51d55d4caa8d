"""The study of a search in its file, and files that are not studies."""

import math
import shutil
import sqlite3
import statistics
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import optuna
import pytest
from optuna.storages import RDBStorage
from sqlalchemy.pool import NullPool

from kindling.records.lookup import RESUMED_SEARCH, find, timestamped
from kindling.sweeps.search.command import check_command_line
from kindling.sweeps.search.loop import SearchLoop
from kindling.sweeps.search.study import open_study
from kindling.system.errors import InputError
from tests.helpers.runs import ended
from tests.helpers.searches import RATE, SMALL, WIDTH, Trained, checked, refusal, searched, told

WIDTHS = "model.hidden_sizes=choice([1],[2],[3])"
ACTIVATION = "model.activation=choice(relu,tanh,gelu)"


def test_another_search_is_told_apart(pretended: Trained, tmp_path: Path) -> None:
    folder = tmp_path / "s"
    before = searched(folder, "search.trials=2")
    other = [*SMALL[:-2], "trainer.max_epochs=3", "trainer.steps_per_call=2", RATE, WIDTH]
    argv = [*other, f"search.folder={folder}", "search.seed=4", "optimizer.momentum=0.5"]
    assert refusal(lambda: open_study(check_command_line(argv))).splitlines() == [
        f"{folder}: holds another search; name a new one by search.folder=FOLDER",
        "  optimizer.momentum: it was interval(0,0.9), now 0.5",
        "  trainer.max_epochs: it was 2, now 3",
        "  search.seed: it was 0, now 4",
    ]
    assert told(folder, "search.trials=2") == before


def foreign(file: Path) -> None:
    with closing(sqlite3.connect(file)) as database:
        database.execute("CREATE TABLE mine (x)")
        database.commit()


def of_optuna(file: Path) -> None:
    storage = RDBStorage(f"sqlite:///{file}", {"poolclass": NullPool})  # closes what it opens
    study = optuna.create_study(storage=storage, study_name="theirs")
    study.add_trial(optuna.trial.create_trial(value=1.0))


def damaged(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 4 : len(content) // 2] = b"x" * (len(content) // 2 - len(content) // 4)
    file.write_bytes(content)


def changed(file: Path) -> None:
    with closing(sqlite3.connect(file)) as database:
        database.execute("DELETE FROM trial_params WHERE param_name = 'optimizer.lr'")
        database.commit()


def executing(*statements: str) -> Callable[[Path], None]:
    def make(file: Path) -> None:
        with closing(sqlite3.connect(file)) as database:
            for statement in statements:
                database.execute(statement)
            database.commit()

    return make


ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n"

OF_ANOTHER = "that are not Optuna's"

HARMFUL = [
    (executing(f"CREATE VIEW v AS {ENDLESS}"), OF_ANOTHER),
    (
        executing("DROP TABLE trial_values", f"CREATE VIEW trial_values AS {ENDLESS}"),
        "its tables",
    ),
    (
        executing(f"CREATE TRIGGER t AFTER INSERT ON trials BEGIN {ENDLESS}; END"),
        OF_ANOTHER,
    ),
    (executing("CREATE INDEX i ON trials (abs(number))"), OF_ANOTHER),
    (
        executing("ALTER TABLE trials ADD COLUMN x AS (length(zeroblob(1000000000)))"),
        "its tables are not Optuna's",
    ),
    (executing("UPDATE trial_user_attributes SET value_json = 1e9 WHERE key = 'size'"), "batch 0"),
    (executing("UPDATE trial_values SET value = NULL"), "is not the study"),
    (executing("INSERT INTO trial_values VALUES (99, 1, 1, 0.5, 'FINITE')"), "has no value"),
    (executing("UPDATE study_directions SET direction = 'MINIMIZE'"), "another direction"),
    (
        executing("INSERT INTO study_directions VALUES (9, 'MINIMIZE', 1, 1)"),
        "another direction",
    ),
    (executing("UPDATE trial_user_attributes SET value_json = '[' "), "is not the study"),
    (executing("UPDATE trials SET state = 'MAYBE'"), "is not the study"),
]


def test_a_study_that_would_do_work_or_makes_no_sense(pretended: Trained, tmp_path: Path) -> None:
    file = tmp_path / "s" / "study.db"
    searched(tmp_path / "s", "search.trials=2")
    good = file.read_bytes()
    for make, answer in HARMFUL:
        file.write_bytes(good)
        make(file)
        text = refusal(lambda: told(tmp_path / "s", "search.trials=2"))
        assert text.startswith(f"{file}: is not the study of a search (")
        assert answer in text


@pytest.mark.parametrize(
    ("make", "answer"),
    [
        (lambda file: file.write_bytes(b"no database" * 1000), "file is not a database"),
        (lambda file: file.write_bytes(b""), "its tables are not Optuna's"),
        (foreign, OF_ANOTHER),
        (of_optuna, "is not the study of a search"),
        (damaged, "it is damaged"),
        (changed, "trial 0 is not of this search"),
    ],
    ids=["text", "empty", "foreign", "of Optuna", "damaged", "changed"],
)
def test_a_file_that_is_no_study(
    make: Callable[[Path], object], answer: str, pretended: Trained, tmp_path: Path
) -> None:
    file = tmp_path / "s" / "study.db"
    searched(tmp_path / "s", "search.trials=2")
    if make not in (damaged, changed):
        file.unlink()
    make(file)
    before = file.read_bytes()
    text = refusal(lambda: told(tmp_path / "s", "search.trials=2"))
    assert text.startswith(f"{file}: is not the study of a search (")
    assert answer in text
    assert "\n" not in text
    assert file.read_bytes() == before


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_study_keeps_no_connection_open(pretended: Trained, tmp_path: Path) -> None:
    """Neither while it is in use nor behind an error. From 3.13 on Python warns of those left."""
    command = checked(tmp_path / "s", "search.trials=2")
    study = open_study(command)
    SearchLoop(command, study).run()
    refusal(lambda: open_study(checked(tmp_path / "s", "search.seed=1")))
    found = [file.readlink() for file in Path("/proc/self/fd").iterdir() if file.is_symlink()]
    assert "study.db" not in {target.name for target in found}


def test_a_search_is_the_latest_though_the_clock_has_gone_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ended(Path("runs/2100-01-01/00-00-00.000000"), 0.5)
    for name in ("a", "b", "a"):  # the last one goes on
        open_study(checked(Path("searches", name)))
        assert find("latest") == find("latest", RESUMED_SEARCH) == Path("searches", name)
    run = ended(timestamped("runs"), 0.5)
    assert find("latest") == run.folder


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    assert "holds mine.txt, not a search" in refusal(lambda: told(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    text = refusal(lambda: told(tmp_path / "mine.txt"))
    assert "cannot be used as the folder of a search (Not a directory)" in text


@pytest.mark.slow
def test_importances(pretended: Trained, tmp_path: Path) -> None:
    own = ("search.trials=24", "search.batch=24", "search.sampler=random")
    searched(tmp_path / "s", *own)
    shares = open_study(checked(tmp_path / "s", *own)).importances()
    assert sum(each.share for each in shares.values()) == pytest.approx(1)
    assert list(shares)[-1] == "model.hidden_sizes"  # of which the value is no function
    for share, low, high in shares.values():
        assert low is not None
        assert high is not None
        assert 0 <= low <= share <= high <= 1
    assert shares == open_study(checked(tmp_path / "s", *own)).importances()  # the same draws
    single = open_study(checked(tmp_path / "new", "search.trials=1"))
    assert single.importances() == {}


@pytest.mark.slow
def test_what_a_sampler_has_learnt_is_important(tmp_path: Path) -> None:
    """The width changes the loss from 0.04 to 0.08, and the sampler soon takes the best width
    nearly always. The activation changes nothing."""
    own = (RATE, WIDTHS, ACTIVATION, "search.trials=30", "search.batch=5")
    found = []
    for seed in range(6):
        given = [*SMALL, *own, f"search.seed={seed}", f"search.folder={tmp_path / str(seed)}"]
        study, noise = open_study(check_command_line(given)), np.random.default_rng(seed)
        for batch in range(6):
            for trial in study.ask(batch, 5).trials:
                width = int(trial.params["model.hidden_sizes"].strip("[]"))
                slow = max(0.0, -1.0 - math.log10(trial.params["optimizer.lr"]))
                loss = 0.1 - 0.02 * width + 0.3 * slow**2 + noise.normal(0, 0.002)
                study.tell(trial, 1 - loss, diverged=False)
        found.append({key: each.share for key, each in study.importances().items()})
    mean = {key: statistics.fmean(each[key] for each in found) for key in found[0]}
    assert mean["model.hidden_sizes"] > 0.15
    assert mean["model.hidden_sizes"] > 2 * mean["model.activation"]
    assert mean["optimizer.lr"] > 2 * mean["model.activation"]


@pytest.mark.slow
def test_importances_are_of_the_scale_on_which_numbers_are_drawn(tmp_path: Path) -> None:
    """A rate from 0.01 to 1 is below 0.1 in half of the trials, but in a tenth of its range."""
    given = [*SMALL, RATE, WIDTHS, "search.trials=100", "search.batch=100"]
    given += ["search.sampler=random", f"search.folder={tmp_path / 's'}"]
    study = open_study(check_command_line(given))
    widths = ["[1]", "[2]", "[3]"]

    def value(slow: bool, width: str) -> float:
        return 0.9 - 0.1 * slow - 0.02 * widths.index(width)

    for trial in study.ask(0, 100).trials:
        slow = trial.params["optimizer.lr"] < 0.1
        found = value(slow, trial.params["model.hidden_sizes"])
        study.tell(trial, found, diverged=False)
    distances = np.array([[0.9 - value(slow, width) for width in widths] for slow in (False, True)])
    told = sorted(0.9 - (trial.value or 0.0) for trial in study.trials)
    grid = np.log1p(distances / statistics.median_low(told))
    rate, width = grid.mean(axis=1).var(), grid.mean(axis=0).var()
    shares = study.importances()
    assert [*shares] == ["optimizer.lr", "model.hidden_sizes"]
    assert shares["optimizer.lr"].share == pytest.approx(rate / (rate + width), abs=0.05)
    assert shares["optimizer.lr"].low > shares["model.hidden_sizes"].high


@pytest.mark.parametrize(
    "values", [(0.1, 0.2), (1.7e308, -1.7e308), (0.0, 1e-300), (0.0, 1e-323), (0.5, 0.5)]
)
def test_importances_of_strange_values(values: tuple[float, float], tmp_path: Path) -> None:
    """Also of two trials at one point: nothing explains their difference."""
    for name, space in (("one", "model.hidden_sizes=choice([1])"), ("more", RATE)):
        given = [
            *SMALL,
            space,
            "search.trials=4",
            "search.batch=4",
            f"search.folder={tmp_path / name}",
        ]
        study = open_study(check_command_line(given))
        for trial in study.ask(0, 4).trials:
            study.tell(trial, values[trial.number % 2], diverged=False)
        shares = [each.share for each in study.importances().values()]
        told = name == "more" and values[0] != values[1]
        assert shares == ([pytest.approx(1)] if told else [])


def test_a_search_that_is_removed_before_it_goes_on_does_not_begin_anew(
    pretended: Trained, tmp_path: Path
) -> None:
    folder = tmp_path / "search"
    searched(folder, "search.trials=1")
    command = check_command_line([f"resume={folder}"])
    shutil.rmtree(folder)
    with pytest.raises(InputError, match="search: another command has removed it meanwhile"):
        open_study(command)
    assert not folder.exists()
