"""The documentation is right: its commands run, its links lead somewhere, its diffs train."""

import argparse
import importlib
import json
import re
import shlex
import shutil
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits, load_iris

from benchmarks.settings import read_settings
from benchmarks.torture import NAMES
from kindling.config.compose import compose
from kindling.inference.export.export import export
from kindling.inference.export.formats import plan
from kindling.records.bundle import write_bundle
from kindling.records.folder import Run
from kindling.records.labels import write_labels
from kindling.sweeps.command_line import check_command_line
from kindling.sweeps.search import command as search_command
from kindling.system.arguments import Parser
from kindling.system.errors import InputError
from kindling.training.fit import fit
from tests.helpers.commands import ROOT, SMALL, Command, Train
from tests.helpers.data_files import write_pictures
from tests.helpers.drawings import draw
from tests.helpers.once import made_once
from tests.helpers.warm import Warm

README = ROOT / "README.md"
EXTENDING = ROOT / "docs" / "extending.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")]
OLD = ROOT / "tests" / "promises" / "old_commands.txt"

# --- what a page holds ------------------------------------------------------------------------


def blocks(page: Path, language: str = r"\w*") -> list[str]:
    """The contents of the fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.M | re.S)


def prose(page: Path) -> str:
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)


def commands_of(page: Path) -> Iterator[str]:
    """The commands of the blocks, after `$ ` in examples of output, and of `code` in sentences."""
    for block in blocks(page, "sh"):
        yield from block.replace("\\\n", " ").splitlines()
    for block in blocks(page, "console"):
        yield from (line[2:] for line in block.splitlines() if line.startswith("$ "))
    starts = r"(?:[A-Z_]+=\S+ )?(?:python -m|make|pip install|torchrun|git clone) "
    yield from re.findall(rf"`({starts}[^`]+)`", prose(page))


def test_a_shell_reads_every_command() -> None:
    """It refuses parentheses without quotes, which `shlex` takes."""
    for text in TEXTS:
        words = shlex.split(text, comments=True, posix=False)
        assert not [w for w in words if "(" in w and not w.startswith(("'", '"', "$("))], text


def words_of(command: str) -> tuple[str, ...]:
    return tuple(shlex.split(command, comments=True))


TEXTS = [text for page in PAGES for text in commands_of(page)] + OLD.read_text().splitlines()
COMMANDS = sorted({words for text in TEXTS if (words := words_of(text))})

# --- form -------------------------------------------------------------------------------------


def test_the_readme_is_short() -> None:
    assert len(README.read_text().splitlines()) <= 200


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_pictures_exist(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", prose(page))
    for link in (link for link in links if not link.startswith("https://")):
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_are_named_exist(page: Path) -> None:
    named = re.findall(
        r"`((?:src|benchmarks|conf|tests|notebooks|hydra_plugins)/[^\s`]*)`", prose(page)
    )
    assert [name for name in named if "NAME" not in name and not (ROOT / name).exists()] == []


@pytest.mark.parametrize("name", ["Makefile", "pyproject.toml", ".ci/run"])
def test_files_that_the_tools_run_exist(name: str) -> None:
    """pytest's parallel form says of an absent file only that there was no test."""
    text = (ROOT / name).read_text()
    named = re.findall(
        r"(?<![\w./])(?:src|benchmarks|conf|tests|notebooks|hydra_plugins)/[\w./]*", text
    )
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_the_tests_of_a_module_are_found_by_its_name() -> None:
    """Or by the table of CONTRIBUTING.md, which lists no module with a test file of its name."""
    listed: list[str] = []
    for line in (ROOT / "CONTRIBUTING.md").read_text().splitlines():
        if line.startswith(("| `src/", "| `benchmarks/")):
            modules, tests = line.strip("| ").split("|")
            assert (ROOT / tests.strip(" `")).exists(), tests
            listed += re.findall("`([^`]+)`", modules)
    packages = (ROOT / "src" / "kindling", ROOT / "src" / "kindling_digits", ROOT / "benchmarks")
    for path in sorted(path for package in packages for path in package.rglob("[!_]*.py")):
        name, folder = str(path.relative_to(ROOT)), path.parent.relative_to(ROOT)
        own = ROOT / "tests" / name.removeprefix("src/kindling/").replace("src/kindling_", "")
        own = own.with_name(f"test_{path.name}")
        if f"{folder}/" not in listed and "template" not in path.parts:
            assert own.exists() != (name in listed), name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_lines_of_blocks_are_at_most_100_characters(page: Path) -> None:
    lines = [line for block in blocks(page) for line in block.splitlines()]
    assert [line for line in lines if len(line) > 100] == []


def test_the_index_lists_every_page() -> None:
    listed = set(re.findall(r"\]\((\w+\.md)\)", (ROOT / "docs" / "index.md").read_text()))
    assert listed == {page.name for page in (ROOT / "docs").glob("*.md")} - {"index.md"}


# --- commands that are checked but not run ----------------------------------------------------


def is_make_target(words: Sequence[str]) -> None:
    target = next((w for w in words if "=" not in w and w != "make"), "setup")
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.M)


def is_extra(words: Sequence[str]) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = re.findall(r"\[(.+)\]", words[-1])
    assert {each for names in named for each in names.split(",")} <= {
        *extras["optional-dependencies"]
    }


def names_tests(words: Sequence[str]) -> None:
    assert all((ROOT / word).exists() for word in words if word.startswith("tests/"))


def is_benchmark(words: Sequence[str]) -> None:
    read_settings(words[3:])


def is_torture(words: Sequence[str]) -> None:
    chosen = [words[i + 1] for i, word in enumerate(words) if word == "--scenario"]
    assert set(chosen) <= set(NAMES)


def is_train(words: Sequence[str]) -> None:
    check_command_line(words[3:])


def is_sweep_elsewhere(words: Sequence[str]) -> None:
    """As `is_train`, on a machine that has what the executor needs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kindling.config.faults.missing", lambda *_: [])
        patch.setattr("shutil.which", str)
        is_train(words)


def is_search(words: Sequence[str]) -> None:
    search_command.check_command_line(words[3:])


def has_right_overrides(words: Sequence[str]) -> None:
    """For commands that this machine may be unable to run."""
    compose(*words[words.index("src.train") + 1 :])


class ParsedError(Exception):
    """Ends a command after its arguments were parsed."""


def has_right_arguments(words: Sequence[str]) -> None:
    """Each command parses its arguments in `main`, before it looks at what they name."""
    name = words[2].removeprefix("src.")
    folder = "kindling_digits" if name == "demo" else "kindling.commands"

    def parse(parser: Parser, args: None = None) -> None:
        for action in parser._actions:
            action.type = action.type if action.type in (int, float) else None
        argparse.ArgumentParser.parse_args(parser, args)
        raise ParsedError

    main = importlib.import_module(f"{folder}.{name}").main
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", [name, *words[3:]])
        patch.setattr(Parser, "parse_args", parse)
        patch.setattr(Parser, "parse_intermixed_args", parse)
        with pytest.raises(ParsedError):
            main()


def is_of_a_wheel(words: Sequence[str]) -> None:
    """`kindling NAME` is checked as `python -m src.NAME`."""
    check = is_train if words[1] == "train" else has_right_arguments
    check(("python", "-m", f"src.{words[1]}", *words[2:]))


def nothing(words: Sequence[str]) -> None:
    """Of a program that is not ours, or with an edit of docs/extending.md: see the reason."""


NOT_RUN: dict[str, tuple[str, Callable[[Sequence[str]], None]]] = {  # how a command begins or looks
    r".*( model=strided| data=iris|upside_down|=rmsprop|=optimizers|src\.parameters)": (
        "needs the diffs of docs/extending.md; see below",
        nothing,
    ),
    r"git clone URL": ("needs a network", nothing),
    r"source \.venv": ("a command of the shell; `make` makes the environment", nothing),
    r"eval ": ("a command of the shell; tests/sweeps/test_completion.py asks bash", nothing),
    r"(\w+=\w+ )?make": ("installs, and most targets take minutes", is_make_target),
    r"pip install": ("needs a network", is_extra),
    r"pip wheel": ("tests/promises/test_wheel.py builds a wheel", nothing),
    r"kindling train model=net ": (
        "needs the extension of docs/extending.md; tests/training/test_lightning_module.py runs it",
        nothing,
    ),
    r"kindling train .*task\.loss=poisson": (
        "needs the extension of docs/extending.md; tests/tasks/test_own_outputs.py runs it",
        nothing,
    ),
    r"kindling train .*(\.own=|val/misses)": (
        "needs an extension; tests/config/test_registry.py runs those of the page",
        nothing,
    ),
    r"kindling ": ("tests/promises/test_wheel.py runs commands of a wheel", is_of_a_wheel),
    r"(\w+=\S+ )*python -m pytest": ("the suite runs these tests", names_tests),
    r"python -m src\.benchmark": (
        "takes minutes; tests/benchmarks runs each suite on little data",
        is_benchmark,
    ),
    r"python -m src\.torture": (
        "takes minutes; tests/benchmarks/test_crashes.py kills runs",
        is_torture,
    ),
    r"python -m src\.demo": (
        "serves until it is stopped; tests/digits/test_demo_server.py draws on it",
        has_right_arguments,
    ),
    r"python -m src\.warm": (
        "leaves a process behind; tests/system/test_warm.py starts some",
        has_right_arguments,
    ),
    r"python -m src\.committee .*--greedy": (
        "of two trials, one may be chosen; committees/test_making.py chooses of three",
        has_right_arguments,
    ),
    r"python -m src\.report .*--live": (
        "serves until it is stopped; tests/reports/test_live.py opens the page",
        has_right_arguments,
    ),
    r"python -m src\.board": (
        "serves until it is stopped; tests/reports/test_board.py opens the page",
        has_right_arguments,
    ),
    r"python -m src\.train.* logger=(mlflow|wandb|\[)": (
        "slow imports; tests/training/test_loggers.py runs them",
        has_right_overrides,
    ),
    r"python -m src\.train.* hydra\.launcher\.executor=slurm": (
        "needs a Slurm cluster; tests/sweeps/executors/test_slurm.py starts one",
        is_sweep_elsewhere,
    ),
    r"python -m src\.train.* hydra\.launcher\.executor=ray": (
        "needs a Ray cluster; tests/sweeps/executors/test_ray.py starts one",
        is_sweep_elsewhere,
    ),
    r"python -m src\.cancel": ("needs a Ray cluster", has_right_arguments),
    r"torchrun": (
        "tests/ranks/test_processes.py starts torchrun, with two nodes too",
        has_right_overrides,
    ),
    r".* trainer\.accelerator=cuda": ("needs a GPU", has_right_overrides),
    r".* data=(fashion_mnist|kmnist|cifar10)\b": ("needs a network", has_right_overrides),
    r".*( trainer\.strategy=ddp| trainer=fsdp|_ddp)$": (
        "ranks import the libraries anew; tests/ranks/test_processes.py and test_fsdp.py run them",
        has_right_overrides,
    ),
    r".* experiment=(?!NAME|few_samples|.*_ddp)\w+$": (
        "tests/training/test_fit.py trains a step of every experiment",
        is_train,
    ),
    r".* data\.group=patient data\.folds=5": (
        "trains five models one by one; tests/data/sources/test_csv.py has folds of groups",
        is_train,
    ),
    r".* seed=(range|0,1,2,3)": (
        "many trials; smaller sweeps are run",
        is_train,
    ),
    r"python -m src\.search (model.hidden_sizes=32,64|.* search\.folds=5)": (
        "each search draws a report; another one is run",
        is_search,
    ),
}


def not_run(words: Sequence[str]) -> tuple[str, Callable[[Sequence[str]], None]] | None:
    text = " ".join(words)
    return next((found for start, found in NOT_RUN.items() if re.match(start, text)), None)


@pytest.mark.slow
def test_commands_that_are_not_run_are_right(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(files)
    for words in COMMANDS:
        found = not_run(words)
        if found is not None:
            found[1](words)


def test_a_wrong_argument_is_no_right_one() -> None:
    for command in ("report sweep --lives", "cancel", "demo RUN --port=x", "committee"):
        with pytest.raises(InputError):
            has_right_arguments(["python", "-m", *f"src.{command}".split()])


def test_each_reason_for_not_running_is_needed() -> None:
    reasons = [found[0] for words in COMMANDS if (found := not_run(words)) is not None]
    assert set(reasons) == {reason for reason, _ in NOT_RUN.values()}


# --- commands that are run --------------------------------------------------------------------

TINY = ("trainer.accelerator=cpu", "trainer.max_epochs=1", "trainer.progress_bar=false")
DIGITS = ("data=digits", *TINY)
OWN_DATA = ("data=image_folder", "data=npz", "data=csv", "data=diabetes")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the commands name, by the names that they use."""
    root = tmp_path_factory.mktemp("files")
    pixels = np.zeros((30, 28, 28), np.uint8)
    pixels[:, 10:18, 10:18] = load_digits().images[:30] * 15
    for name in ("samples.npz", "FILE.npz"):
        np.savez(root / name, x=pixels, y=np.arange(30) % 10)
    (root / "FOLDER").mkdir()
    draw(3, (40, 40), (8, 8, 32, 32), 4).save(root / "FOLDER" / "three.png")
    shutil.copy(root / "FOLDER" / "three.png", root)
    draw(3, (200, 160), (60, 30, 130, 130), 12).save(root / "form.jpg")
    write_pictures(root / "classes", {"cat": 12, "dog": 12})
    rows = enumerate(zip(*load_iris(return_X_y=True), strict=True))
    table = [
        f"{','.join(map(str, row))},1,{number},{number // 5},{label}"
        for number, (row, label) in rows
    ]
    header = "a,b,c,year,name,ticket,patient,COLUMN"
    for name, lines in (("FILE.csv", table), ("new.csv", table[::2])):
        (root / name).write_text("\n".join([header, *lines]) + "\n")
    houses = np.random.default_rng(0).normal(size=(60, 4))
    flats = np.hstack([houses[:, :2], houses[:, 2:] > 0])
    for name, named, numbers in (
        ("houses", "price,rent", houses),
        ("flats", "garden,garage", flats),
    ):
        rows_of = [",".join(map(str, row)) for row in numbers.tolist()]
        (root / f"{name}.csv").write_text("\n".join([f"area,rooms,{named}", *rows_of]) + "\n")
    np.savez(root / "patients.npz", x=np.zeros((3, 10), np.float32))
    (root / "DIR" / "experiment").mkdir(parents=True)
    recipe = "# @package _global_\noptimizer:\n  lr: 0.25\n"
    (root / "DIR" / "experiment" / "NAME.yaml").write_text(recipe)
    return root


def tiny(words: Sequence[str]) -> tuple[str, ...]:
    """The module and its arguments: few epochs, few trials, small data, and the folders that stand
    for placeholders."""
    module, *given = words[2:]
    if "new.csv" in given or "--columns" in given:  # for a model of a table
        return (module, "runs/DATE/TABLE", *given[1:])
    if module == "src.tables":
        return (module, *given, "--networks=3", *TINY[:2])
    if module == "src.committee" and "sweeps/DATE/FOLDS" not in given:  # the sweep has two trials
        return (module, *("2" if word in ("5", "10") else word for word in given))
    if module not in ("src.train", "src.search") or "--help" in given:
        return (module, *given)
    places = {"data.path=FOLDER": "data.path=classes", "resume=FOLDER": "resume=sweeps/DATE/TIME"}
    given = [places.get(word, word) for word in given]
    if module == "src.search":
        given = [word for word in given if not word.startswith("search.")]
        given.append("search.trials=2" if "resume=searches/NAME" in given else "search.trials=1")
    if any(word.startswith("resume=") and word != "resume=auto" for word in given):
        return (module, *given)
    data = () if set(OWN_DATA) & set(given) else ("data=digits",)
    kept = [word for word in given if not data or not word.startswith("data=")]
    return (module, *kept, *data, *TINY)


RUN = {tiny(words): words for words in COMMANDS if not_run(words) is None}
ALONE = r"(?!resume|hydra|start_from|freeze)[a-z_.]+="
SETTINGS = [  # commands of settings alone; others have options, or go on with something
    arguments
    for arguments in RUN
    if arguments[0] == "src.train"
    and all(re.match(ALONE, word) for word in arguments[1:])
    and "trainer.precision=17-mixed" not in arguments
]


@pytest.mark.slow
def test_settings_train(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands' own two steps, without the start of a command for each."""
    monkeypatch.chdir(files)
    for number, arguments in enumerate(SETTINGS):
        [config] = check_command_line(arguments[1:]).points
        assert fit(config, tmp_path / str(number)).result["status"] == "finished", arguments


def test_capitals_in_commands_name_what_the_tests_have() -> None:
    """The commands themselves run in the slow tests alone."""
    named = {word for arguments in RUN for word in arguments[1:] if word.isupper()}
    assert named <= {"COLUMN", "FOLDER"}


@pytest.fixture(scope="module")
def runner() -> Iterator[Warm]:
    runner = Warm("kindling.training.fit", "kindling.reports.page")
    yield runner
    runner.stop()


@pytest.fixture(scope="module")
def base(files: Path, runner: Warm, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files, and the runs, the sweep and the search that the commands name."""

    def make(base: Path) -> None:
        shutil.copytree(files, base, dirs_exist_ok=True)
        named = ("name=wide", "tags=[first]")
        fit(compose(*DIGITS, "augmentation=digits", *named), base / "runs" / "DATE" / "TIME")
        table = ("data=csv", f"data.path={base / 'FILE.csv'}", "data.target=COLUMN")
        fit(compose(*table, *TINY), base / "runs" / "DATE" / "TABLE")
        shutil.copytree(base / "runs" / "DATE" / "TIME", base / "runs" / "DATE" / "OTHER")
        write_labels(base / "runs" / "DATE" / "OTHER", name="other")
        fit(compose("data=diabetes", *TINY, "name=diabetes"), base / "runs" / "DATE" / "NUMBERS")
        write_bundle([base / "runs" / "DATE" / "TIME"], base / "run.zip")
        sweep = ("-m", "hydra/launcher=fused", "seed=0,1", "hydra.sweep.dir=sweeps/DATE/TIME")
        search = ("optimizer.lr=interval(0.1,1)", "search.trials=1", "search.folder=searches/NAME")
        folds = (*sweep[:-2], "data.folds=2", "data.fold=0,1", "hydra.sweep.dir=sweeps/DATE/FOLDS")
        assert runner(base, "src.train", *sweep, *DIGITS).returncode == 0
        assert runner(base, "src.train", *folds, *DIGITS).returncode == 0
        assert runner(base, "src.search", *search, *DIGITS).returncode == 0

    return made_once(tmp_path_factory, "base", make)


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [each for each in RUN if each not in SETTINGS], ids=" ".join)
def test_a_command_runs(
    arguments: tuple[str, ...], base: Path, runner: Warm, tmp_path: Path
) -> None:
    words = RUN[arguments]
    assert words[:2] == ("python", "-m"), words
    shutil.copytree(base, tmp_path, dirs_exist_ok=True)
    if "--bundle" in words:
        (tmp_path / "run.zip").unlink()
    done = runner(tmp_path, *arguments)
    faulty = "trainer.precision=17-mixed" in words
    assert done.returncode == (2 if faulty else 0), (words, done.stdout, done.stderr)


def test_examples_of_faults_are_what_is_printed(command: Command) -> None:
    examples = {block for page in PAGES for block in blocks(page, "console") if block[0] == "$"}
    assert examples
    for example in examples:
        typed, _, printed = example.partition("\n")
        done = command(*words_of(typed)[3:])
        assert done.stderr == printed


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if blocks(page, "python") and page != EXTENDING],
    ids=lambda page: page.name,
)
def test_python_runs(
    page: Path, files: Path, train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(train(*TINY).folder, "runs/DATE/TIME")
    draw(3, (40, 40), (8, 8, 32, 32), 4).save("three.png")
    if "new.csv" in "".join(blocks(page, "python")):
        shutil.copy(files / "new.csv", "new.csv")
        table = train("data=csv", "data.path=new.csv", "data.target=COLUMN", *TINY)
        export(plan(table.folder, "onnx", Path("model.onnx"), columns=True))
    settings = ", ".join(repr(text) for text in DIGITS)
    for block in blocks(page, "python"):
        own = "data=(x, y)" in block  # has small data already
        small = re.sub(r"kindling\.(compose|sweep)\(", rf"\g<0>{settings}, ", block)
        exec(block if own else small, {})


# --- what is added as docs/extending.md says --------------------------------------------------


def apply(diff: str, root: Path) -> None:
    """Does what a reader does: looks for the lines as they are and makes them what they should be.

    `+++ FILE` names a file; `…` stands between two places in it.
    """
    for part in re.split(r"^\+\+\+ ", diff, flags=re.M)[1:]:
        name, _, lines = part.partition("\n")
        path = root / name
        for place in lines.split(" …\n"):
            old = [line[1:] for line in place.splitlines() if line[0] in " -"]
            new = [line[1:] for line in place.splitlines() if line[0] in " +"]
            if not old:
                assert not path.exists()
                path.write_text("\n".join(new) + "\n")
                continue
            before = "".join(f"{line}\n" for line in old)
            text = path.read_text()
            assert text.count(before) == 1, before
            path.write_text(text.replace(before, "".join(f"{line}\n" for line in new)))


@pytest.fixture(scope="module")
def added(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warm]:
    """Runs commands of a copy of the sources, with everything that docs/extending.md adds."""
    root = tmp_path_factory.mktemp("added")
    for folder in ("src", "benchmarks", "conf", "hydra_plugins"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder, root / folder, ignore=ignored)
    (root / "tests" / "helpers").mkdir(parents=True)
    shutil.copy(ROOT / "tests" / "helpers" / "warm.py", root / "tests" / "helpers")
    for diff in blocks(EXTENDING, "diff"):
        parts = [part.partition("\n") for part in re.split(r"^\+\+\+ ", diff, flags=re.M)[1:]]
        assert sum(not name.endswith(".yaml") for name, _, _ in parts) <= 2
        assert all(line[:1] in " +-…" for _, _, text in parts for line in text.splitlines())
        apply(diff, root)
    runner = Warm("kindling.training.fit", root=root)
    yield runner
    runner.stop()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("choice", "accuracy"),
    [
        (("model=strided", "data=digits", "experiment=few_samples"), 0.95),
        (("data=iris", "model=logistic_regression"), 0.9),
        (("augmentation.upside_down=true", "data=digits"), 0.4),
    ],
    ids=["a model", "a data set", "an augmentation"],
)
def test_an_addition_trains(
    choice: tuple[str, ...], accuracy: float, added: Warm, tmp_path: Path
) -> None:
    assert ("python", "-m", "src.train", *choice) in COMMANDS
    done = added(tmp_path, "src.train", *choice, "trainer=cpu", "hydra.run.dir=run")
    assert done.returncode == 0, done.stderr
    result = Run(tmp_path / "run").result
    assert (result["test/acc"] or 0) > accuracy
    assert f"data={result['data']['name']}" in choice
    done = added(tmp_path, "src.evaluate", "run", "--json")
    assert json.loads(done.stdout)["accuracy"] == pytest.approx(result["test/acc"])
    done = added(tmp_path, "src.report", "run")
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_an_added_optimizer_trains_a_trial_as_its_single_run(added: Warm, tmp_path: Path) -> None:
    command = next(words for words in COMMANDS if "optimizer=rmsprop" in words)
    done = added(tmp_path, *command[2:], "trainer=cpu", "hydra.sweep.dir=sweep")
    assert done.returncode == 0, done.stderr
    trials = [Run(tmp_path / "sweep" / str(number)) for number in range(2)]
    assert [trial.result["stacked"] for trial in trials] == [2, 2]
    single = ("optimizer=rmsprop", "optimizer.lr=0.01", "data=digits", "trainer=cpu")
    done = added(tmp_path, "src.train", *single, "hydra.run.dir=run")
    assert done.returncode == 0, done.stderr
    alone, stacked = Run(tmp_path / "run").history[-1], trials[1].history[-1]
    assert stacked["val/loss"] == pytest.approx(alone["val/loss"], rel=1e-3)


@pytest.mark.slow
def test_an_added_suite_and_command_answer(added: Warm, tmp_path: Path) -> None:
    assert added(tmp_path, "src.train", *SMALL, "hydra.run.dir=runs/DATE/TIME").returncode == 0
    for last, printed in (
        (("src.benchmark", "suite=optimizers", "rounds=1"), '"suite": "optimizers"'),
        (("src.parameters", "runs/DATE/TIME"), "25450"),
    ):
        command = ("python", "-m", *last)
        assert command in COMMANDS
        done = added(tmp_path, *command[2:])
        assert done.returncode == 0, done.stderr
        assert printed in done.stdout


@pytest.mark.slow
def test_a_model_of_pictures_and_a_table_say_what_to_type(added: Warm, tmp_path: Path) -> None:
    done = added(tmp_path, "src.train", "model=strided", "data=iris", "hydra.run.dir=run")
    assert done.returncode == 2
    told = "error: model=strided: cannot take samples of shape [4] (Expected 3D"
    assert done.stderr.startswith(told)
    assert "type model=logistic_regression or model=mlp, which take any shape" in done.stderr
    assert len(done.stderr.splitlines()) == 1
