# PYTHON_ARGCOMPLETE_OK
"""Lists runs, sweeps, searches, confirmations and committees; compares and removes them.

python -m src.runs                                   all in runs/, sweeps/ and searches/
python -m src.runs FOLDER ... --json                 for other programs
python -m src.runs --where status=finished 'best>97%' tag=wide optimizer.lr=0.1
python -m src.runs --sort best --limit 10
python -m src.runs compare RUN RUN ...               settings, metrics, environment and weights
python -m src.runs label FOLDER --name NAME --tag TAG
python -m src.runs rm FOLDER ...                     asks first
python -m src.runs clean                             failed and empty ones; asks first

Wherever a command takes a folder, it also takes latest, a name, and the beginning of a name or of a
path, if only one folder has this beginning.
"""

import sys
from pathlib import Path

from src.system.arguments import Parser, command_parser, completed_by
from src.system.errors import InputError
from src.system.process import importing, run

COMMANDS = ("list", "compare", "label", "rm", "clean")


def main() -> None:
    from src.runs.labels import Change, read_labels, write_labels
    from src.runs.lookup import MODEL, finder, typed_folders

    parser = command_parser("runs", __doc__)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")

    def command(name: str, purpose: str) -> Parser:
        return commands.add_parser(name, help=purpose, description=f"{purpose.capitalize()}.")

    listing = command("list", "list runs and sweeps, the default")
    shown = listing.add_argument(
        "folders", nargs="*", type=finder(), metavar="FOLDER",
        help="default: runs, sweeps and searches",
    )  # fmt: skip
    listing.add_argument(
        "--where", nargs="+", default=[], metavar="CONDITION",
        help="KEY=VALUE; also != < <= > >=; default: all",
    )  # fmt: skip
    listing.add_argument(
        "--sort", default="began", metavar="KEY", help="default: began, the newest first"
    )
    listing.add_argument(
        "--limit", type=int, default=30, metavar="N", help="rows; 1 or more, default: 30"
    )
    listing.add_argument("--json", action="store_true", help="print a JSON list of all")
    comparing = command("compare", "compare settings, metrics and weights of runs")
    compared = comparing.add_argument(
        "runs", nargs="+", type=finder(MODEL), metavar="RUN", help="two or more"
    )
    labelling = command("label", "change the name and the tags")
    labelled = labelling.add_argument(
        "folder", type=finder(), metavar="FOLDER", help="a run or a sweep"
    )
    labelling.add_argument(
        "--name", metavar="NAME", help='stands in place of the folder; "" removes it'
    )
    labelling.add_argument("--tag", nargs="+", default=[], metavar="TAG", help="add tags")
    labelling.add_argument("--untag", nargs="+", default=[], metavar="TAG", help="remove tags")
    removing = command("rm", "remove runs and sweeps")
    # The beginning of a name may be a typing mistake, and a removal is for ever.
    removed = removing.add_argument(
        "folders", nargs="+", type=finder(whole=True), metavar="FOLDER", help="runs and sweeps"
    )
    for each in (shown, compared, labelled, removed):
        completed_by(each, typed_folders)
    cleaning = command("clean", "remove failed and empty runs and sweeps")
    for sub in (removing, cleaning):
        sub.add_argument("--yes", action="store_true", help="do not ask")
    argv = sys.argv[1:]
    chosen = argv[0] if argv else ""
    _require_meaning(chosen)
    arguments = parser.parse_args(
        argv if chosen in (*COMMANDS, "-h", "--help") else ["list", *argv]
    )

    if arguments.command == "list":
        from src.runs.listing import listed

        print(
            listed(
                arguments.folders, arguments.where, arguments.sort, arguments.limit,
                as_json=arguments.json,
            )
        )  # fmt: skip
    elif arguments.command == "compare":
        from src.runs.lookup import require_runs

        require_runs(arguments.runs)
        with importing():
            from src.runs.difference import describe

        print(describe(arguments.runs))
    elif arguments.command == "label":
        change = Change(arguments.name, tuple(arguments.tag), tuple(arguments.untag))
        absent = {*change.remove} - {*read_labels(arguments.folder).tags}
        labels = write_labels(arguments.folder, change)
        remark = f"; it had no tag {', '.join(sorted(absent))}" if absent else ""
        print(f"{arguments.folder}: {labels}{remark}")
    else:
        from src.runs.removal import remove_all, useless

        clean = arguments.command == "clean"
        folders = useless() if clean else dict.fromkeys(arguments.folders, "")
        print(remove_all(folders, ask=not arguments.yes))


def _require_meaning(text: str) -> None:
    """Raises InputError for a first argument that is neither a command nor a folder, but nearly a
    command."""
    from src.config.faults import did_you_mean
    from src.runs.lookup import find

    hint = "" if text in COMMANDS or Path(text).exists() else did_you_mean(text, COMMANDS)
    if hint and not find(text).exists():
        raise InputError(f"{text}: is neither a command nor a folder{hint}")


if __name__ == "__main__":
    run(main)
