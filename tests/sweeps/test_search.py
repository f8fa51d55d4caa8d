"""Searches: their space, and that a killed one ends as one that was left alone."""

import math
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import optuna
import pytest
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from optuna.storages import RDBStorage
from sqlalchemy.pool import NullPool

from src.benchmarks.crashes import fingerprint
from src.config import compose as composition
from src.config.schema import Config
from src.runs.folder import Run
from src.runs.sweep_folder import Sweep
from src.sweeps import search_loop as loop
from src.sweeps.command_line import check_command_line as train_command_line
from src.sweeps.search_command import Command, check_command_line
from src.sweeps.search_loop import search
from src.sweeps.search_space import Choice, Numbers, Parameter, corners, parameter_of
from src.sweeps.search_study import Study, open_study
from src.system.errors import InputError, Interrupted
from src.system.files import lock
from src.system.signals import handled
from tests.helpers import commands
from tests.helpers.commands import ROOT
from tests.helpers.kills import Killed, die_after_writing

WIDTH = "model.hidden_sizes=choice([2],[3],[2,2])"
RATE = "optimizer.lr=tag(log,interval(0.01,1))"
MOMENTUM = "optimizer.momentum=interval(0,0.9)"
SMALL = (
    *("data=synthetic", "data.samples=60", "data.test_samples=20", "data.shape=[4]"),
    *("data.batch_size=12", "trainer=cpu", "trainer.max_epochs=2", "trainer.steps_per_call=2"),
)
SPACE = (WIDTH, RATE, MOMENTUM)
Told = list[tuple[dict[str, Any], float | None, str]]


def parsed(text: str) -> Parameter:
    return parameter_of(OverridesParser.create().parse_override(text))


def numbers(key: str, text: str, low: float, high: float, **others: Any) -> Numbers:
    return Numbers(
        key, text, low, high, **({"integer": False, "log": False, "step": None} | others)
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=choice(x,y)", Choice("a", ("x", "y"))),
        ("a=x, y", Choice("a", ("x", "y"))),
        ("a=[64],[64,64],null", Choice("a", ("[64]", "[64,64]", "null"))),
        ("a=sort(3,1,2)", Choice("a", ("1", "2", "3"))),
        ("a=interval(0, 1)", numbers("a", "interval(0,1)", 0.0, 1.0)),
        ("a=tag(log,interval(1e-3,1))",
         numbers("a", "tag(log,interval(1e-3,1))", 0.001, 1.0, log=True)),
        ("a=int(interval(2,5))", numbers("a", "int(interval(2,5))", 2, 5, integer=True, step=1)),
        ("a=range(3)", numbers("a", "range(3)", 0, 2, integer=True, step=1)),
        ("a=range(1,10,4)", numbers("a", "range(1,10,4)", 1, 9, integer=True, step=4)),
        ("a=range(10,1,-4)", numbers("a", "range(10,1,-4)", 2, 10, integer=True, step=4)),
        ("a=range(0.1,0.4,0.1)", numbers("a", "range(0.1,0.4,0.1)", 0.1, 0.3, step=0.1)),
        ("a=tag(log,range(1,9))",
         numbers("a", "tag(log,range(1,9))", 1, 8, integer=True, log=True, step=1)),
    ],
)  # fmt: skip
def test_forms_of_a_space(text: str, expected: Parameter) -> None:
    found = parsed(text)
    assert found == expected
    assert [type(value) for value in vars(found).values()] == [
        type(value) for value in vars(expected).values()
    ]


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("optimizer.lr=interval(0,1)", "reaches optimizer.lr=0.0: must be greater than 0"),
        ("optimizer.lr=tag(log,interval(0,1))", "the tag log needs a start greater than 0"),
        ("optimizer.lr=tag(log,range(0.1,1,0.1))", "and with range of integers by 1"),
        ("optimizer.lr=tag(log,choice(0.1,1))", "the tag log goes with interval and range"),
        ("optimizer.lr=tag(wide,interval(0.1,1))", "the tag wide means nothing here; log is"),
        ("optimizer.lr=interval(1,0.1)", "its start must be less than its end"),
        ("optimizer.lr=interval(0.1,inf)", "must have finite ends"),
        ("optimizer.lr=interval(1)", "cannot be read"),
        ("optimizer.lr=choice(0.1,-1)", "optimizer.lr=-1: must be greater than 0"),
        ("optimizer.lr=choice(0.1,0.1)", "has 0.1 twice"),
        ("optimizer.lr=shuffle(choice(0.1,1))", "leave shuffle out"),
        ("optimizer.momentum=interval(0,1)", "optimizer.momentum=1.0: must be less than 1"),
        ("optimizer.lrr=interval(0.1,1)", "unknown key; did you mean optimizer.lr?"),
        ("model.hidden_sizes=tag(log,interval(4,8))",
         "needs integers; type model.hidden_sizes=tag(log,int(interval(4,8)))"),
        ("seed=range(3,3)", "holds no number; the stop itself is left out"),
        ("seed=range(0,3,0)", "a step that is not 0"),
        ("model=glob(*)", "list the choices: model=choice(a,b)"),
        ("model=choice(mlp,mpl)", "model=mpl: must be one of logistic_regression, mlp"),
        ("checkpoint.monitor=choice(val/acc,val/loss)", "trials are compared by it"),
        ("search.trials=0", "must be greater than 0, for example search.trials=64"),
        ("search.trials=1,2", "search.trials=1,2: needs one value"),
        ("search.sampler=tpee", "must be one of tpe, random; did you mean tpe?"),
        ("search.halving=1", "must be greater than or equal to 2"),
        ("search.trails=3", "unknown key; did you mean search.trials?"),
        ("trials=3", "unknown key; did you mean search.trials?"),
        ("hydra.run.dir=x", "leave it out"),
        ("seed=1", "nothing to search"),
        ("resume=auto", "the same command goes on"),
    ],
)  # fmt: skip
def test_a_fault_names_key_value_and_remedy(text: str, answer: str) -> None:
    with pytest.raises(InputError) as caught:
        check_command_line([*SMALL, text])
    assert answer in str(caught.value)


def test_all_faults_come_at_once() -> None:
    with pytest.raises(InputError) as caught:
        check_command_line(
            ["optimizer.lr=interval(-1,0)", "optimizer.nesterov=choice(false,true)", "seed=-1",
             "search.batch=no", "optimizer.momentum=0.5", "optimizer.momentum=0"]
        )  # fmt: skip
    assert str(caught.value).splitlines() == [
        "6 faults in the configuration, nothing was started",
        "  optimizer.momentum=0: optimizer.momentum is given twice",
        "  search.batch=no: must be a valid integer, for example search.batch=16",
        "  seed=-1: must be greater than or equal to 0, for example seed=0",
        "  optimizer.lr=interval(-1,0) reaches optimizer.lr=-1.0: must be greater than 0, "
        "for example optimizer.lr=0.5",
        "  optimizer.nesterov=true needs a momentum, not optimizer.momentum=0; "
        "type optimizer.momentum=0.9",
        "  optimizer.lr=interval(-1,0) reaches optimizer.lr=0.0: must be greater than 0, "
        "for example optimizer.lr=0.5",
    ]


def test_corners_show_every_pair() -> None:
    space = [parsed(text) for text in ("a=choice(1,2,3)", "b=interval(0,1)", "c=x,y")]
    found = [set(point) for point in corners(space)]
    pairs = [("a=3", "b=1.0"), ("a=2", "c=y"), ("b=1.0", "c=y"), ("a=1", "b=0.0")]
    assert all(any(set(pair) <= point for point in found) for pair in pairs)
    assert len(found) == len({frozenset(point) for point in found}) == 10
    assert corners(space[:1]) == [["a=1"], ["a=2"], ["a=3"]]


def test_faults_cost_neither_torch_nor_optuna(tmp_path: Path) -> None:
    script = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); sys.argv = ['search', 'seed=-1,2']\n"
        "from src import search\n"
        "from src.system.errors import exit_on_error\n"
        "try:\n"
        "    with exit_on_error(): search.main()\n"
        "except SystemExit as end: print(end.code, {'torch', 'optuna'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "2 set()"
    assert done.stderr.startswith("error: 1 fault in the configuration, nothing was started\n")
    assert not list(tmp_path.iterdir())


def test_optuna_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(InputError, match=r'needs optuna; type pip install -e "\.\[search\]"'):
        check_command_line(SPACE)
    assert "\nsearch = [" in (ROOT / "pyproject.toml").read_text()


# --- the course of a search ---


def value_of(config: Config) -> float:
    """What a pretended trial comes to: best at a rate of 0.1 without momentum."""
    values = config.to_primitives()
    rate, momentum = values["optimizer"]["lr"], values["optimizer"]["momentum"]
    return float(1 - abs(math.log10(rate) + 1) / 4 - momentum / 4)


Trained = list[list[int]]


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> Trained:
    """Trials end at once; the numbers of those that were trained together are noted."""
    noted: Trained = []

    def train(configs: Sequence[Config], folders: Sequence[Path], *_rest: object) -> None:
        noted.append([int(folder.name) for folder in folders])
        for config, folder in zip(configs, folders, strict=True):
            best = {"val/acc": value_of(config)}
            result = {"status": "finished", "monitor": "val/acc", "best": best}
            Run(folder).write_result(result)

    monkeypatch.setattr(loop, "train_trials", train)
    monkeypatch.setattr(loop, "finish_sweep", lambda _: None)
    return noted


def checked(folder: Path, *overrides: str) -> Command:
    return check_command_line([*SMALL, *SPACE, f"search.folder={folder}", *overrides])


def searched(folder: Path, *overrides: str) -> Told:
    command = checked(folder, *overrides)
    search(command, open_study(command))
    return told(folder, *overrides)


def told(folder: Path, *overrides: str) -> Told:
    return trials_of(open_study(checked(folder, *overrides)))


def trials_of(study: Study) -> Told:
    return [(trial.params, trial.value, trial.state.name) for trial in study.trials]


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_a_search_is_a_function_of_its_seed(
    sampler: str, pretended: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = (f"search.sampler={sampler}", "search.trials=13", "search.batch=10")
    one, same = (searched(tmp_path / name, *own) for name in ("one", "same"))
    assert one == same
    assert searched(tmp_path / "other", *own[:1], "search.trials=2", "search.seed=1") != one[:2]
    assert pretended[:2] == [[*range(10)], [*range(10, 13)]]
    for number, (params, value, state) in enumerate(one):
        run = Run(tmp_path / "one" / str(number))
        assert run.overrides["optimizer.lr"] == repr(params["optimizer.lr"])
        assert run.config.to_primitives()["optimizer"]["lr"] == params["optimizer.lr"]
        assert run.overrides["model.hidden_sizes"] == params["model.hidden_sizes"]
        assert run.overrides["data"] == "synthetic"
        assert (value, state) == (value_of(run.config), "COMPLETE")
    results(monkeypatch, *({"status": "finished", "best": {"val/acc": n / 10}} for n in range(10)))
    points = [params for params, _, _ in one]
    others = [params for params, _, _ in searched(tmp_path / "values", *own)]
    assert others[:10] == points[:10]
    assert (others[10:] != points[10:]) == (sampler == "tpe")  # which learns from the first batch


def killed_until_it_ends(command: Command) -> tuple[int, Study]:
    """Starts the search again after every death; how many there were."""
    deaths = 0
    while True:
        study = open_study(command)
        try:
            search(command, study)
            return deaths, study
        except Killed:
            deaths += 1


def test_killed_after_every_write(
    pretended: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process dies after its first write to the study, the next one after its own, …"""
    own = ("search.trials=13", "search.batch=5")
    expected = searched(tmp_path / "whole", *own)
    command = checked(tmp_path / "killed", *own)
    written = Study._written

    @contextmanager
    def fatal(self: Study) -> Iterator[None]:
        count = len(self.study.trials) if hasattr(self, "study") else 0
        states = [trial.state for trial in self.study.trials] if count else []
        with written(self):
            yield
        if count and states != [trial.state for trial in self.study.trials]:
            raise Killed

    monkeypatch.setattr(Study, "_written", fatal)
    deaths, study = killed_until_it_ends(command)
    assert deaths == 25  # all asked but the very first, and all told
    assert trials_of(study) == expected


def test_killed_within_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With real trials, at every checkpoint: their weights are the same bit for bit."""
    monkeypatch.setattr(loop, "finish_sweep", lambda _: None)
    own = ("search.trials=3", "search.batch=2", "checkpoint.every_n_steps=2")
    expected = searched(tmp_path / "whole", *own)
    command = checked(tmp_path / "killed", *own)
    die_after_writing(monkeypatch)
    deaths, study = killed_until_it_ends(command)
    assert trials_of(study) == expected
    assert deaths >= 2 * 4  # two batches at least, two epochs, twice in each
    assert all(value is not None and 0 <= value <= 1 for _, value, _ in expected)
    for number in range(3):
        runs = [Run(tmp_path / name / str(number)) for name in ("whole", "killed")]
        assert fingerprint(runs[0]) == fingerprint(runs[1])
    left = {path.name for path in (tmp_path / "killed").iterdir() if not path.name.isdigit()}
    assert left == {".lock", "study.db", "search.yaml", "results.csv"}


def test_more_trials_go_on(pretended: Trained, tmp_path: Path) -> None:
    before = searched(tmp_path / "s", "search.trials=3", "search.batch=2")
    after = searched(tmp_path / "s", "search.trials=6", "search.batch=2")
    assert after[:3] == before
    assert pretended == [[0, 1], [2], [3, 4], [5]]
    command = check_command_line([f"resume={tmp_path / 's'}", "search.trials=7"])
    search(command, open_study(command))
    assert pretended[4:] == [[6]]
    command = check_command_line([f"resume={tmp_path / 's'}"])
    assert (command.settings.trials, command.folder) == (7, tmp_path / "s")
    with pytest.raises(InputError, match=r"search\.trials alone may grow; leave out seed=1"):
        check_command_line([f"resume={tmp_path / 's'}", "seed=1"])


def test_two_processes(
    pretended: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """While one trains its first batch, another does all that it may."""
    finished: list[Path] = []
    monkeypatch.setattr(loop, "finish_sweep", finished.append)
    command = checked(tmp_path / "s", "search.trials=7", "search.batch=2")
    one, other = (loop.Search(command, open_study(command)) for _ in range(2))
    train, reports = vars(loop)["train_trials"], []

    def beside(*arguments: Any) -> Any:
        monkeypatch.setattr(loop, "train_trials", train)
        with caplog.at_level("INFO", "src"):
            other.run()
        reports.append(len(finished))
        return train(*arguments)

    monkeypatch.setattr(loop, "train_trials", beside)
    one.run()
    assert pretended == [[2, 3], [4, 5], [6], [0, 1]]
    assert "another process trains batch 0, and reports when it ends" in caplog.text
    assert (reports, finished) == ([0], [tmp_path / "s"])
    found = told(tmp_path / "s", "search.trials=7", "search.batch=2")
    assert [state for _, _, state in found] == ["COMPLETE"] * 7


def test_a_batch_of_a_living_process_is_not_taken(pretended: Trained, tmp_path: Path) -> None:
    own = ("search.trials=4", "search.batch=2")
    command = checked(tmp_path / "s", *own)
    study = open_study(command)
    study.ask(0, 2)
    with lock(tmp_path / "s" / ".batch0.lock"):
        searched(tmp_path / "s", *own)
    assert pretended == [[2, 3]]
    searched(tmp_path / "s", *own)
    assert pretended == [[2, 3], [0, 1]]


def results(monkeypatch: pytest.MonkeyPatch, *given: dict[str, Any]) -> None:
    def train(configs: Sequence[Config], folders: Sequence[Path], *_rest: object) -> None:
        for folder in folders:
            Run(folder).write_result({"monitor": "val/acc", **given[int(folder.name) % len(given)]})

    monkeypatch.setattr(loop, "train_trials", train)
    monkeypatch.setattr(loop, "finish_sweep", lambda _: None)


def test_what_has_no_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A diverged trial is no failure: the sampler learns from it that it is worse than any."""
    best = {"val/acc": 0.5}
    results(
        monkeypatch,
        {"status": "finished", "best": best},
        {"status": "diverged", "best": best},
        {"status": "failed", "error": "ValueError: x"},
        {"status": "finished", "best": {"val/acc": None}},
    )
    found = searched(tmp_path / "s", "search.trials=4")
    assert [(value, state) for _, value, state in found] == [
        (0.5, "COMPLETE"),
        (None, "PRUNED"),
        (None, "FAIL"),
        (None, "FAIL"),
    ]


def test_nothing_can_be_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As without data: what is wrong is told at once, and the same trials come again."""
    results(monkeypatch, {"status": "failed", "error": "InputError: no data"})
    own = ("search.trials=4", "search.batch=2")
    with pytest.raises(InputError) as caught:
        searched(tmp_path / "s", *own)
    assert str(caught.value).startswith("none of the first 2 trials could be trained (InputError: ")
    assert str(caught.value).endswith(f"python -m src.search resume={tmp_path / 's'}")
    before = told(tmp_path / "s", *own)
    assert [state for _, _, state in before] == ["RUNNING"] * 2
    results(monkeypatch, {"status": "finished", "best": {"val/acc": 0.5}})
    assert [params for params, _, _ in searched(tmp_path / "s", *own)][:2] == [
        params for params, _, _ in before
    ]


def test_minimised_where_the_mode_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    losses = ({"val/loss": 2.0}, {"val/loss": 1.0}, {"val/loss": 3.0})
    monitor = {"monitor": "val/loss", "status": "finished"}
    results(monkeypatch, *({**monitor, "best": best} for best in losses))
    own = ("checkpoint.monitor=val/loss", "checkpoint.mode=min", "search.trials=3")
    with caplog.at_level("INFO", "src"):
        searched(tmp_path / "s", *own)
    assert "batch 0: 3 of 3 trials done, best val/loss 1, trial 1: " in caplog.text


def test_a_signal_says_what_goes_on(
    pretended: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = vars(loop)["train_trials"]

    def interrupted(*arguments: Any) -> None:
        train(*arguments)
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(loop, "train_trials", interrupted)
    with pytest.raises(Interrupted) as caught, handled(rank=False):
        searched(tmp_path / "s", "search.trials=4")
    assert caught.value.number == signal.SIGTERM
    assert str(caught.value) == (
        f"stopped; to go on, type\n  python -m src.search resume={tmp_path / 's'}"
    )


# --- the folder of a search ---


def refusal(act: Callable[[], object]) -> str:
    with pytest.raises(InputError) as caught:
        act()
    return str(caught.value)


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


def test_the_same_search_finds_its_folder() -> None:
    one = check_command_line([*SMALL, WIDTH, RATE])
    same = check_command_line([RATE, *SMALL, WIDTH, "search.trials=3", "data.root=elsewhere"])
    other = check_command_line([*SMALL, WIDTH, RATE, "seed=1"])
    assert one.folder == same.folder != other.folder
    assert one.folder.parent == Path("searches")
    assert one.folder.name.startswith("hidden_sizes-lr-")


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
    (executing("DROP TABLE trial_values", f"CREATE VIEW trial_values AS {ENDLESS}"), "it has not"),
    (
        executing(f"CREATE TRIGGER t AFTER INSERT ON trials BEGIN {ENDLESS}; END"),
        OF_ANOTHER,
    ),
    (executing("CREATE INDEX i ON trials (abs(number))"), OF_ANOTHER),
    (
        executing("ALTER TABLE trials ADD COLUMN x AS (length(zeroblob(1000000000)))"),
        "it has not Optuna's tables",
    ),
    (executing("UPDATE trial_user_attributes SET value_json = 1e9 WHERE key = 'size'"), "batch 0"),
    (executing("UPDATE trial_values SET value = NULL"), "is no study"),
    (executing("INSERT INTO trial_values VALUES (99, 1, 1, 0.5, 'FINITE')"), "has no value"),
    (executing("UPDATE study_directions SET direction = 'MINIMIZE'"), "its direction"),
    (executing("INSERT INTO study_directions VALUES (9, 'MINIMIZE', 1, 1)"), "its direction"),
    (executing("UPDATE trial_user_attributes SET value_json = '[' "), "is no study"),
    (executing("UPDATE trials SET state = 'MAYBE'"), "is no study"),
]


def test_a_study_that_would_do_work_or_makes_no_sense(pretended: Trained, tmp_path: Path) -> None:
    file = tmp_path / "s" / "study.db"
    searched(tmp_path / "s", "search.trials=2")
    good = file.read_bytes()
    for make, answer in HARMFUL:
        file.write_bytes(good)
        make(file)
        text = refusal(lambda: told(tmp_path / "s", "search.trials=2"))
        assert text.startswith(f"{file}: is no study of a search (")
        assert answer in text


@pytest.mark.parametrize(
    ("make", "answer"),
    [
        (lambda file: file.write_bytes(b"no database" * 1000), "file is not a database"),
        (lambda file: file.write_bytes(b""), "it has not Optuna's tables"),
        (foreign, OF_ANOTHER),
        (of_optuna, "is no study of a search"),
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
    assert text.startswith(f"{file}: is no study of a search (")
    assert answer in text
    assert "\n" not in text
    assert file.read_bytes() == before


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_study_keeps_no_connection_open(pretended: Trained, tmp_path: Path) -> None:
    """Neither while it is in use nor behind an error. From 3.13 on Python warns of those left."""
    command = checked(tmp_path / "s", "search.trials=2")
    study = open_study(command)
    search(command, study)
    refusal(lambda: open_study(checked(tmp_path / "s", "search.seed=1")))
    found = [file.readlink() for file in Path("/proc/self/fd").iterdir() if file.is_symlink()]
    assert "study.db" not in {target.name for target in found}


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    assert "holds no search but mine.txt" in refusal(lambda: told(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    text = refusal(lambda: told(tmp_path / "mine.txt"))
    assert "cannot be used as the folder of a search (Not a directory)" in text


@pytest.mark.parametrize(
    "content", ["a: 1", "[1]", "[", "[resume=x]", "['hydra.run.dir=/', 'seed=1,2']"]
)
def test_a_record_that_is_none(content: str, tmp_path: Path) -> None:
    (tmp_path / "search.yaml").write_text(content)
    refusal(lambda: check_command_line([f"resume={tmp_path}"]))


def test_train_says_who_goes_on_with_a_search(pretended: Trained, tmp_path: Path) -> None:
    folder = tmp_path / "s"
    searched(folder, "search.trials=2")
    (folder / "1" / "result.json").unlink()
    for given in (folder, folder / "1"):
        text = refusal(lambda given=given: train_command_line([f"resume={given}"]))  # type: ignore[misc]
        assert text.endswith(f"type python -m src.search resume={folder}")


def test_searches_of_strange_paths(pretended: Trained, tmp_path: Path) -> None:
    folder = tmp_path / "50% {of} a?b#c ü"
    command = check_command_line([*SMALL, *SPACE, "search.trials=1"], folder)
    search(command, open_study(command))
    assert (folder / "study.db").exists()
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]


def test_importances(pretended: Trained, tmp_path: Path) -> None:
    own = ("search.trials=24", "search.batch=24", "search.sampler=random")
    searched(tmp_path / "s", *own)
    shares = open_study(checked(tmp_path / "s", *own)).importances()
    assert sum(shares.values()) == pytest.approx(1)
    assert list(shares)[-1] == "model.hidden_sizes"  # of which the value is no function
    single = open_study(checked(tmp_path / "new", "search.trials=1"))
    assert single.importances() == {}


def test_halving_within_a_batch(tmp_path: Path) -> None:
    """What is dropped is told all the same, with what it had come to."""
    own = ("search.trials=8", "search.batch=4", "search.halving=2")
    command = check_command_line([*SMALL, RATE, MOMENTUM, *own], tmp_path / "s")
    study = open_study(command)
    search(command, study)
    runs = [Run(tmp_path / "s" / str(number)) for number in range(8)]
    for batch in (runs[:4], runs[4:]):
        assert sorted(run.result["epochs"] for run in batch) == [1, 1, 2, 2]
        first = {run: run.history[1]["val/acc"] or 0 for run in batch}
        dropped = [run for run in batch if run.result["stopped"] == "halving"]
        assert max(first[run] for run in dropped) <= min(
            first[r] for r in batch if r not in dropped
        )
    assert [trial.value for trial in study.trials] == [run.monitored for run in runs]
    with pytest.raises(InputError, match=r"search\.halving: it was 2, now 3"):
        open_study(
            check_command_line(
                [*SMALL, RATE, MOMENTUM, *own[:2], "search.halving=3"], tmp_path / "s"
            )
        )


def test_a_search_from_the_command_line(cold_command: commands.Command, tmp_path: Path) -> None:
    own = ("search.trials=4", "search.batch=2", "search.folder=here")
    done = cold_command("src.search", *SMALL, *SPACE, *own)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "batch 1: 4 of 4 trials done, best val/acc" in done.stdout
    best = max(Sweep(tmp_path / "here").trials, key=lambda run: run.monitored)
    assert f"best trial, to train it alone: {best.command}" in done.stdout
    assert "report: here/report.html" in done.stdout
    assert "importance: " in done.stdout
    rows = (tmp_path / "here" / "results.csv").read_text().splitlines()
    assert len(rows) == 5
    assert yaml.safe_load((tmp_path / "here" / "search.yaml").read_text()) == [
        *SMALL, *SPACE, *own[:2]
    ]  # fmt: skip
    config = composition.compose(*(f"{k}={v}" for k, v in best.overrides.items()))
    assert config == best.config
