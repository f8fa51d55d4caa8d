"""Writes a page about runs and sweeps: curves, tables, effects of keys, mistakes of the models.

python -m src.report PATH... [--output FILE.html] [--force]
python -m src.report RUN --bundle run.zip
"""

from pathlib import Path

from src.system.process import command_parser, importing, run


def main() -> None:
    parser = command_parser("report", __doc__)
    parser.add_argument(
        "paths", nargs="+", type=Path, metavar="PATH", help="runs, sweeps, or folders of them"
    )
    parser.add_argument(
        "--output", type=Path, metavar="FILE.html", help="default: PATH/report.html"
    )
    parser.add_argument(
        "--bundle",
        type=Path,
        metavar="FILE.zip",
        help="write one run into a file from which others can repeat it",
    )
    parser.add_argument("--force", action="store_true", help="replace an existing file")
    arguments = parser.parse_args()
    if arguments.bundle is not None:
        from src.runs.bundle import write_bundle

        write_bundle(arguments.paths, arguments.bundle, force=arguments.force)
        print(arguments.bundle)
        return
    with importing():
        from src.reports.page import write_report

    print(write_report(arguments.paths, arguments.output, force=arguments.force))


if __name__ == "__main__":
    run(main)
