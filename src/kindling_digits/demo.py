"""Serves a page on which you draw a digit, or fill in a row, and watch what a trained model says.

python -m src.demo RUN                 http://127.0.0.1:8000; RUN: a run folder or a .ckpt file
python -m src.demo RUN --port 8080     another port; 0 for a free one
python -m src.demo RUN --no-browser    only print the address
"""

from kindling.system.arguments import command_parser
from kindling.system.process import importing
from kindling.system.signals import handled


def main() -> None:
    from kindling.records.lookup import add_run, config_of

    parser = command_parser("demo", __doc__)
    add_run(parser)
    parser.add_argument(
        "--port", type=int, default=8000, metavar="PORT", help="0 to 65535, default: 8000"
    )
    parser.add_argument("--no-browser", action="store_true", help="do not open a browser")
    arguments = parser.parse_args()
    with handled(rank=False):
        config = config_of(arguments.run)
        with importing():
            if config is not None and config.data.name == "csv":
                from kindling.inference.form import serve_form as demonstrate
            else:
                from kindling_digits.demo_server import demonstrate

        demonstrate(arguments.run, arguments.port, browser=not arguments.no_browser)
