"""Commands of searches are checked as a whole, before Optuna or torch is imported."""

import subprocess
import sys
from pathlib import Path

import pytest

from kindling.sweeps.command_line import check_command_line as train_command_line
from kindling.sweeps.search.command import check_command_line
from kindling.system.errors import InputError
from kindling.system.installation import PATHS
from tests.helpers.commands import ROOT
from tests.helpers.searches import MOMENTUM, RATE, SMALL, SPACE, WIDTH, Trained, refusal, searched


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("optimizer.lr=interval(0,1)", "reaches optimizer.lr=0.0: must be greater than 0"),
        ("optimizer.lr=tag(log,interval(0,1))", "the tag log needs a start greater than 0"),
        ("optimizer.lr=tag(log,range(0.1,1,0.1))", "and with range of integers by 1"),
        ("optimizer.lr=tag(log,choice(0.1,1))", "the tag log goes with interval and range"),
        ("optimizer.lr=tag(wide,interval(0.1,1))", "the tag wide has no meaning here"),
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
        ("seed=range(3,3)", "has no number; the stop itself is not included"),
        ("seed=range(0,3,0)", "a step that is not 0"),
        ("model=glob(*)", "list the choices: model=choice(a,b)"),
        ("model=choice(mlp,mpl)", "model=mpl: must be one of cnn, ladder, logistic_regression"),
        ("optimizer.lr=zip(0.1,-1)", "optimizer.lr=-1: must be greater than 0"),
        ("optimizer.lr=zip(0.1,0.1)", "zip(…): has optimizer.lr=0.1 twice"),
        ("optimizer.lr=zip()", "optimizer.lr=zip(): zip(…) has no values"),
        ("optimizer.lr=zip(interval(0,1))", "zip(…) takes single values or one range(…)"),
        ("optimizer.lrr=zip(0.1,1)", "unknown key; did you mean optimizer.lr?"),
        ("model=zip(mlp,mpl)", "model=mpl: must be one of cnn, ladder, logistic_regression"),
        ("checkpoint.monitor=zip(val/acc,val/loss)", "trials are compared by this key"),
        ("search.trials=zip(1,2)", "search.trials=zip(1,2): needs one value"),
        ("checkpoint.monitor=choice(val/acc,val/loss)", "trials are compared by this key"),
        ("search.trials=0", "must be greater than 0, for example search.trials=64"),
        ("search.trials=1,2", "search.trials=1,2: needs one value"),
        ("search.sampler=tpee", "must be one of tpe, random; did you mean tpe?"),
        ("search.folds=1", "must be greater than or equal to 2"),
        ("search.halving=1", "must be greater than or equal to 2"),
        ("search.trails=3", "unknown key; did you mean search.trials?"),
        ("trials=3", "unknown key; did you mean search.trials?"),
        ("hydra.run.dir=x", "leave it out"),
        ("seed=1", "nothing to search"),
        ("resume=auto", "the same command resumes"),
    ],
)  # fmt: skip
def test_a_fault_names_key_value_and_remedy(text: str, answer: str) -> None:
    with pytest.raises(InputError) as caught:
        check_command_line([*SMALL, text])
    assert answer in str(caught.value)


@pytest.mark.parametrize(
    ("texts", "answer"),
    [
        (["search.folds=5", "data.folds=3"],
         "data.folds=3: search.folds=5 sets this key in each run; leave it out"),
        (["search.folds=5", "++data.fold=0"],
         "++data.fold=0: search.folds=5 sets this key in each run; leave it out"),
        (["search.folds=5", "data.fold=range(5)"],
         "data.fold=range(5): search.folds=5 sets this key in each run; leave it out"),
        (["data.folds=5", "data.fold=range(5)"],
         "data.fold=range(5): a search would choose the easiest fold; type search.folds=5 to "
         "compare means over folds"),
        (["search.folds=5", "search.halving=2"],
         "search.halving=2: compares single runs, and search.folds=5 compares means over folds; "
         "leave one of them out"),
        (["search.folds=1000", "search.batch=11"],
         "search.batch=11: with search.folds=1000, a batch has 11,000 runs, at most 10,000; type "
         "search.batch=10 or less"),
        (["search.folds=2", "data.order=stream"],
         "data.order=stream has no order for a fold; type data.order=seeded"),
    ],
)  # fmt: skip
def test_folds_belong_to_the_search_alone(texts: list[str], answer: str) -> None:
    with pytest.raises(InputError) as caught:
        check_command_line([*SMALL, RATE, *texts])
    assert str(caught.value).splitlines()[1:] == [f"  {answer}"]


def test_a_loss_is_not_compared_with_another() -> None:
    data = ("data=diabetes", "trainer=cpu")
    for space in ("task.loss=choice(huber,quantile)", "task.delta=interval(0.1,1)"):
        with pytest.raises(InputError) as caught:
            check_command_line([*data, space])
        assert str(caught.value).splitlines()[1:] == [
            f"  {space}: the values of one loss are not compared with those of another; type "
            "checkpoint.monitor=val/r2 checkpoint.mode=max"
        ]
        more = ("checkpoint.monitor=val/r2", "checkpoint.mode=max")
        assert [each.key for each in check_command_line([*data, space, *more]).space] == [
            space.partition("=")[0]
        ]


def test_all_faults_come_at_once() -> None:
    with pytest.raises(InputError) as caught:
        check_command_line(
            ["optimizer.lr=interval(-1,0)", "optimizer.nesterov=choice(false,true)", "seed=-1",
             "search.batch=no", "optimizer.momentum=0.5", "optimizer.momentum=0"]
        )  # fmt: skip
    assert str(caught.value).splitlines() == [
        "6 faults in the configuration, nothing was started",
        "  optimizer.momentum=0: optimizer.momentum is given twice",
        "  search.batch=no: must be a whole number, for example search.batch=16",
        "  seed=-1: must be greater than or equal to 0, for example seed=0",
        "  optimizer.lr=interval(-1,0) reaches optimizer.lr=-1.0: must be greater than 0, "
        "for example optimizer.lr=0.5",
        "  optimizer.nesterov=true needs a momentum, not optimizer.momentum=0; "
        "type optimizer.momentum=0.9",
        "  optimizer.lr=interval(-1,0) reaches optimizer.lr=0.0: must be greater than 0, "
        "for example optimizer.lr=0.5",
    ]


def test_faults_of_zip_come_at_once_and_once() -> None:
    with pytest.raises(InputError) as caught:
        check_command_line(
            [*SMALL, "optimizer.lr=zip(0.1,0.2)", "model.hidden_sizes=zip(8)", "seed=-1",
             "optimizer.lr=zip(1,2)", "optimizer.momentum=zip(0,0.5)", "optimizer.momentum=0"]
        )  # fmt: skip
    assert str(caught.value).splitlines()[1:] == [
        "  optimizer.lr=zip(1,2): optimizer.lr is given twice",
        "  optimizer.momentum=0: optimizer.momentum is given twice",
        "  zip(…): optimizer.lr has 2 values, model.hidden_sizes has 1 value, optimizer.momentum "
        "has 2 values; keys that change together need the same number of values; to combine a key "
        "with all others, type KEY=A,B",
        "  seed=-1: must be greater than or equal to 0, for example seed=0",
    ]


def test_a_search_with_zip_has_a_name_of_its_own() -> None:
    texts = ("optimizer.lr=zip(0.1,0.3)", "model.hidden_sizes=zip([2],[3])", MOMENTUM)
    command = check_command_line([*SMALL, *texts])
    assert command.folder.name.startswith("hidden_sizes-lr-momentum-")
    assert [each.key for each in command.space] == [
        "model.hidden_sizes+optimizer.lr", "optimizer.momentum",
    ]  # fmt: skip
    assert command.identity["optimizer.lr"] == "zip(0.1,0.3)"
    assert command.identity["model.hidden_sizes"] == "zip([2],[3])"
    assert check_command_line([*SMALL, *texts[::-1]]).folder == command.folder
    others = ("optimizer.lr=0.1,0.3", "model.hidden_sizes=[2],[3]", MOMENTUM)
    assert check_command_line([*SMALL, *others]).folder != command.folder


@pytest.mark.slow
def test_faults_cost_neither_torch_nor_optuna(tmp_path: Path) -> None:
    script = (
        f"import sys; sys.path[:0] = {PATHS}; sys.argv = ['search', 'seed=-1,2']\n"
        "from kindling.commands import search; import src\n"
        "from kindling.system.errors import exit_on_error\n"
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


def test_the_same_search_finds_its_folder() -> None:
    one = check_command_line([*SMALL, WIDTH, RATE])
    same = check_command_line([RATE, *SMALL, WIDTH, "search.trials=3", "data.root=elsewhere"])
    other = check_command_line([*SMALL, WIDTH, RATE, "seed=1"])
    assert one.folder == same.folder != other.folder
    folded = check_command_line([*SMALL, WIDTH, RATE, "search.folds=2"])
    assert folded.folder != one.folder
    assert "search.folds" not in one.identity  # as in older searches
    assert "data.fold" not in folded.identity
    assert one.folder.parent == Path("searches")
    assert one.folder.name.startswith("hidden_sizes-lr-")


@pytest.mark.parametrize(
    "content", ["a: 1", "[1]", "[", "[resume=x]", "['hydra.run.dir=/', 'seed=1,2']"]
)
def test_a_record_that_is_none(content: str, tmp_path: Path) -> None:
    (tmp_path / "search.yaml").write_text(content)
    refusal(lambda: check_command_line([f"resume={tmp_path}"]))


@pytest.mark.slow
def test_train_says_who_goes_on_with_a_search(pretended: Trained, tmp_path: Path) -> None:
    folder = tmp_path / "s"
    searched(folder, "search.trials=2")
    (folder / "1" / "result.json").unlink()
    for given in (folder, folder / "1"):
        text = refusal(lambda given=given: train_command_line([f"resume={given}"]))  # type: ignore[misc]
        assert text.endswith(f"type python -m src.search resume={folder}")
