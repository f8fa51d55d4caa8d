# PYTHON_ARGCOMPLETE_OK
"""Serves a page on which you draw a digit and watch the predictions of a trained model.

python -m src.demo RUN                 http://127.0.0.1:8000; RUN: a run folder or a .ckpt file
python -m src.demo RUN --port 8080     another port; 0 for a free one
python -m src.demo RUN --no-browser    only print the address
"""

from src.system.arguments import command_parser, completed_by
from src.system.process import importing, run
from src.system.signals import handled


def main() -> None:
    from src.runs.lookup import MODEL, finder, typed_folders

    parser = command_parser("demo", __doc__)
    completed_by(
        parser.add_argument(
            "run", type=finder(MODEL), metavar="RUN", help="a run folder, or a checkpoint file"
        ),
        typed_folders,
    )
    parser.add_argument(
        "--port", type=int, default=8000, metavar="PORT", help="0 to 65535, default: 8000"
    )
    parser.add_argument("--no-browser", action="store_true", help="do not open a browser")
    arguments = parser.parse_args()
    with handled(rank=False):
        with importing():
            from src.inference.demo_server import demonstrate

        demonstrate(arguments.run, arguments.port, browser=not arguments.no_browser)


if __name__ == "__main__":
    run(main)
