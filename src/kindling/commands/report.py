"""Writes a page about runs and sweeps: curves, tables, effects of keys, mistakes of the models.

python -m src.report PATH... [--output FILE.html] [--force]
python -m src.report PATH... --live [--port 8000]    serves a page about what is under way
python -m src.report RUN --bundle run.zip
"""

from pathlib import Path

from kindling.system.arguments import command_parser
from kindling.system.errors import InputError
from kindling.system.process import importing
from kindling.system.signals import handled


def main() -> None:
    from kindling.records.lookup import MODEL, REPORTED, WATCHED, find, typed_folders

    parser = command_parser("report", __doc__)
    parser.value(
        "paths", "PATH", "runs, sweeps, or folders of them", nargs="+", completer=typed_folders
    )
    purpose = parser.add_mutually_exclusive_group()
    purpose.add_argument(
        "--output", type=Path, metavar="FILE.html",
        help="of the page; default: PATH/report.html, or for several paths report-NAMES.html in "
        "the folder that they share",
    )  # fmt: skip
    purpose.add_argument(
        "--bundle", type=Path, metavar="FILE.zip",
        help="write one run into a file from which others can repeat it",
    )  # fmt: skip
    purpose.add_argument(
        "--live", action="store_true", help="serve a page that shows how far the training is"
    )
    parser.flag("--force", "replace an existing file")
    parser.value("--port", "PORT", "of --live; 0 to 65535, default: a free port", type=int)
    arguments = parser.parse_args()
    if arguments.port is not None and not arguments.live:
        raise InputError(f"--port {arguments.port}: is of --live; type --live too")
    # The newest run may not have an epoch yet, and be watched all the same.
    use = MODEL if arguments.bundle else WATCHED if arguments.live else REPORTED
    paths = [find(text, use) for text in arguments.paths]
    if arguments.bundle is not None:
        from kindling.records.bundle import write_bundle

        write_bundle(paths, arguments.bundle, force=arguments.force)
        print(arguments.bundle)
        return
    if arguments.live:
        with handled(rank=False):
            with importing():
                from kindling.reports.live import serve_live

            serve_live(paths, arguments.port or 0)
        return
    from kindling.reports.drawing import drawing_apart
    from kindling.reports.page import write_report

    with drawing_apart() as begin:
        page = write_report(paths, arguments.output, force=arguments.force, tell=print, begin=begin)
    print(page)
