"""Quotes that Kindling adds to overrides: values as people type them, against what is composed."""

import random
import re
import shlex

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from kindling.config.compose import compose
from kindling.config.faults import keys_of_texts
from kindling.config.overrides import OVERRIDES_LIMIT, combine, parsed, with_quotes
from kindling.sweeps.command_line import check_command_line
from kindling.sweeps.search.command import check_command_line as check_search
from kindling.system.errors import InputError

PARTS = [
    *"ab1 äß日#'\"=,:;&|!?*~^`<>()[]{}.-+_/@%$\\", "ja", "true", "null", "1e5", "0.1", "nan", "1_0",
    "é\u0301", "\u200d", "choice(", "range(", "int", " (cm)", "–", "''",
]  # fmt: skip
ESCAPE = re.compile(r"\\[][(){}:=, \t\\'\"]")


def texts(count: int) -> list[str]:
    hand = random.Random(7)
    found = ["".join(hand.choices(PARTS, k=hand.randint(1, 7))) for _ in range(count)]
    # `${` and `???` have a meaning to OmegaConf; a bare text may have Hydra's own escapes.
    return [text for text in found if "${" not in text and "???" not in text]


def composed(override: str) -> str | list[str]:
    config = compose("data=csv", "data.path=a.csv", "task=multilabel", override)
    assert config.data.name == "csv"
    return config.data.target


@pytest.mark.slow
def test_any_text_is_composed_as_it_is_or_its_fault_has_it_in_quotes() -> None:
    """The advice is read by a shell's rules, and then composes to the text."""
    read = 0
    for text in texts(600):
        override = f"data.target={text}"
        try:
            found = composed(override)
        except InputError as error:
            if text.strip().lower() in ("null", "", '""', "''"):
                continue
            (advice,) = re.findall(r"(?s)(?:text|quotes)[^:]*: ('?data.target=.*)\n", str(error))
            (pasted,) = shlex.split(advice)
            assert composed(pasted) == text, advice
            continue
        own = OverridesParser.create()
        try:
            bare = own.parse_override(override).value()
        except HydraException:
            bare = None
        read += bare is None
        if isinstance(found, list):
            assert re.fullmatch(r"(?s)\s*\[.*\]\s*", text), text
            continue
        if isinstance(bare, str):  # as before: Hydra's own quotes, escapes and spaces count
            assert found == bare
        else:
            assert found == text.strip(" \t"), text
    assert read > 250


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("data.path=/home/josé/ä#b.csv", "/home/josé/ä#b.csv"),
        ("data.path=ä,b.csv", "ä,b.csv"),
        ("data.target=Length (cm)", "Length (cm)"),
        ("data.target=größe (cm, in)", "größe (cm, in)"),
        ("data.target=it's", "it's"),
        ("data.target=1.50", "1.50"),
        ("data.drop=[Größe,Straße nr.,true,'a,ä',2020]",
         ["Größe", "Straße nr.", "true", "a,ä", "2020"]),
    ],
)  # fmt: skip
def test_values_of_one_run(typed: str, expected: str | list[str]) -> None:
    key, name = typed.partition("=")[0], typed.partition("=")[0].rpartition(".")[2]
    fixed = {"data.path": "a.csv", "data.target": "b"}
    overrides = ["data=csv", *(f"{k}={v}" for k, v in fixed.items() if k != key), typed]
    assert getattr(compose(*overrides).data, name) == expected


@pytest.mark.parametrize(
    ("typed", "values"),
    [
        ("data.path=ä.csv,b#.csv,c.csv", ["ä.csv", "b#.csv", "c.csv"]),
        ("data.target='a,ä',b=", ["a,ä", "b="]),
        ("data.target=choice(ä,b)", ["ä", "b"]),
        ("data.target=zip(ä,b c)", ["ä", "b c"]),
        ("data.target=true,1e5,2020", ["true", "1e5", 2020]),
        ("data.drop=[ä,b],[c]", [["ä", "b"], ["c"]]),
        ("name=ä", ["ä"]),
    ],
)
def test_commas_of_a_sweep_stay_choices(typed: str, values: list[object]) -> None:
    combinations, _, faults = combine(with_quotes([typed], sweep=True), sweep=True)
    assert not faults
    assert [parsed(text).value() for (text,) in combinations] == values


@pytest.mark.parametrize(
    "text",
    ["model.hidden_sizes=[128,", "optimizer.lr=rnage(1,2)", "seed=1,2", "seed=range(0,4", "help",
     "data.target=range(3)", "data.target=int (cm)", "resume=runs/ä", "~data.target", "+name=a",
     "name=", "experiment=cnn", "a=" + "ä" * OVERRIDES_LIMIT, "name=null", "data.group=7"],
)  # fmt: skip
def test_what_stays_as_it_is(text: str) -> None:
    assert with_quotes([text], sweep=True) == [text]


def test_the_keys_of_texts() -> None:
    assert keys_of_texts() == {
        "augmentation.own", "callbacks", "data.categories", "data.digest", "data.drop",
        "data.empty", "data.group", "data.numbers", "data.path", "data.root", "data.target",
        "data.val_path",
        "data.weights", "freeze", "logger.mlflow_file", "logger.own", "logger.project",
        "model.class_name", "name", "resume", "start_from", "tags", "trainer.max_time",
    }  # fmt: skip
    lists = {
        "augmentation.own", "callbacks", "data.categories", "data.drop", "data.empty",
        "data.numbers", "data.target", "freeze", "logger.own", "tags",
    }  # fmt: skip
    assert keys_of_texts(listed=True) == lists


def test_from_the_command_line() -> None:
    """The value arrives where it is used, of a run, a sweep and a search."""
    typed = ("data=csv", "data.path=no/ä#=.csv", "data.target=é")
    for check, more in (
        (check_command_line, ()),
        (check_command_line, ("-m", "seed=1,2")),
        (check_search, ("seed=1,2",)),
    ):
        with pytest.raises(InputError) as caught:
            check([*typed, *more])
        assert "data.path=no/ä#=.csv: there is no such file or folder in" in str(caught.value)
        assert "token recognition" not in str(caught.value)
