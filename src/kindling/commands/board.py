"""Serves a page over all runs and sweeps: a table, curves, and runs side by side.

python -m src.board                              all below the current folder
python -m src.board runs cluster/runs --port 8080

The page shows what is in the folders, also of runs that train, and changes nothing but names, tags
and notes. Copy folders from a cluster, for example with rsync, and the page shows them.
"""

from pathlib import Path

from kindling.system.arguments import command_parser
from kindling.system.process import importing
from kindling.system.signals import handled


def main() -> None:
    from kindling.records.lookup import finder, typed_folders

    parser = command_parser("board", __doc__)
    parser.value(
        "paths", "PATH", "runs, sweeps, or folders of them; default: the current folder",
        nargs="*", type=finder(), completer=typed_folders,
    )  # fmt: skip
    parser.value("--port", "PORT", "0 to 65535, default: a free port", type=int, default=0)
    arguments = parser.parse_args()
    with handled(rank=False):
        with importing():
            from kindling.reports.board import serve_board

        serve_board(arguments.paths or [Path()], arguments.port)
