"""The arguments of commands: faults in one line, help in one style."""

import pytest

from kindling.system.arguments import Parser, command_parser
from kindling.system.errors import InputError
from tests.helpers.screen import terminal

DOC = """Does a thing.

python -m src.thing RUN       once
                              and its second line

More about the thing.

And more.
"""


def thing() -> Parser:
    parser = command_parser("thing", DOC)
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("--count", type=int, metavar="N", help="1 to 3, default: 1")
    parser.add_argument("--rate", type=float)
    parser.add_argument("--form", choices=("onnx", "torch"))
    return parser


ASK = "; type python -m src.thing --help for help"


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("", f"RUN: is missing{ASK}"),
        ("r --count x", f"--count x: must be a whole number{ASK}"),
        ("r --count 1.5", f"--count 1.5: must be a whole number{ASK}"),
        ("r --rate ä", f"--rate ä: must be a number{ASK}"),
        ("r --form pt", "--form pt: must be one of onnx, torch"),
        ("r --form onxx", "--form onxx: must be one of onnx, torch; did you mean onnx?"),
        ("r --forn onnx", "--forn: unknown argument; did you mean --form?"),
        ("r --rat=1 --nothing", f"--nothing: unknown argument{ASK}"),
        ("r s", f"s: unknown argument{ASK}"),
        ("r --count", f"--count: expected one argument{ASK}"),
    ],
)
def test_a_fault_is_one_line(typed: str, told: str) -> None:
    with pytest.raises(InputError) as error:
        thing().parse_args(typed.split())
    assert str(error.value) == told
    with pytest.raises(InputError) as error:
        thing().parse_intermixed_args(typed.split())
    assert str(error.value) == told


def test_a_value_with_line_ends() -> None:
    with pytest.raises(InputError, match=r"^--count 1\\nx: must be a whole number"):
        thing().parse_args(["r", "--count", "1\nx"])


def test_the_help(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit) as end:
        thing().parse_args(["--help"])
    assert end.value.code == 0
    shown = capsys.readouterr().out
    assert shown.startswith("usage: python -m src.thing [-h] [--count N] ")
    assert "\n\nDoes a thing.\n\n" in shown
    assert "  --count N            1 to 3, default: 1\n" in shown
    assert shown.endswith(
        "\n\nexamples:\n"
        "  python -m src.thing RUN       once\n"
        "                                and its second line\n\n"
        "More about the thing.\n\nAnd more.\n"
    )


def test_colours_of_argparse_are_none_of_ours() -> None:
    """Newer versions of Python colour their help; a fault never has their colours."""
    with terminal(), pytest.raises(InputError) as error:
        thing().parse_args([])
    assert "\x1b" not in str(error.value)
