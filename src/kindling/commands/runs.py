"""Lists runs, sweeps, searches, confirmations and committees; compares and removes them.

python -m src.runs                                   all in runs/, sweeps/ and searches/
python -m src.runs FOLDER ... --json                 for other programs
python -m src.runs --where status=finished 'best>97%' tag=wide optimizer.lr=0.1
python -m src.runs --sort best --limit 10
python -m src.runs compare RUN RUN ...               settings, metrics, environment and weights
python -m src.runs label FOLDER --name NAME --tag TAG --note TEXT
python -m src.runs rm FOLDER ...                     asks first
python -m src.runs clean                             failed and empty ones; asks first

Wherever a command takes a folder, it also takes latest, a name, and the beginning of a name or of a
path, if only one folder has this beginning.
"""

import sys
from pathlib import Path

from kindling.system.arguments import Parser, command_parser
from kindling.system.errors import InputError
from kindling.system.process import importing

COMMANDS = ("list", "compare", "label", "rm", "clean")


def main() -> None:
    from kindling.records.labels import read_labels, write_labels
    from kindling.records.lookup import MODEL, finder, typed_folders

    parser = command_parser("runs", __doc__)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")

    def command(name: str, purpose: str) -> Parser:
        return commands.add_parser(name, help=purpose, description=f"{purpose.capitalize()}.")

    listing = command("list", "list runs and sweeps, the default")
    listing.value(
        "folders", "FOLDER", "default: runs, sweeps and searches", nargs="*", type=finder(),
        completer=typed_folders,
    )  # fmt: skip
    listing.value(
        "--where", "CONDITION", "KEY=VALUE; also != < <= > >=; default: all", nargs="+", default=[]
    )
    listing.value(
        "--sort", "KEY",
        "default: began, the newest first; best: by the name of the data set, of each the "
        "best first, and runs without a value last",
        default="began",
    )  # fmt: skip
    listing.value("--limit", "N", "rows; 1 or more, default: 30", type=int, default=30)
    listing.flag("--json", "print a JSON list of all")
    comparing = command("compare", "compare settings, metrics and weights of runs")
    comparing.value(
        "runs", "RUN", "two or more", nargs="+", type=finder(MODEL), completer=typed_folders
    )
    labelling = command("label", "change the name, the tags and the note")
    labelling.value("folder", "FOLDER", "a run or a sweep", type=finder(), completer=typed_folders)
    labelling.value("--name", "NAME", 'stands in place of the folder; "" removes it')
    labelling.value("--tag", "TAG", "add tags", nargs="+", default=[])
    labelling.value("--untag", "TAG", "remove tags", nargs="+", default=[])
    labelling.value("--note", "TEXT", 'any text of up to 2,000 characters; "" removes it')
    removing = command("rm", "remove runs and sweeps")
    # The beginning of a name may be a typing mistake, and a removal is for ever.
    removing.value(
        "folders", "FOLDER", "runs and sweeps", nargs="+", type=finder(whole=True),
        completer=typed_folders,
    )  # fmt: skip
    for each in (removing, command("clean", "remove failed and empty runs and sweeps")):
        each.flag("--yes", "do not ask")
    argv = sys.argv[1:]
    chosen = argv[0] if argv else ""
    _require_meaning(chosen)
    arguments = parser.parse_args(
        argv if chosen in (*COMMANDS, "-h", "--help") else ["list", *argv]
    )

    if arguments.command == "list":
        from kindling.records.listing import listed

        found = listed(
            arguments.folders, arguments.where, arguments.sort, arguments.limit,
            as_json=arguments.json,
        )  # fmt: skip
        print(found)
    elif arguments.command == "compare":
        from kindling.records.lookup import require_runs

        require_runs(arguments.runs)
        with importing():
            from kindling.records.comparison import side_by_side

        print(side_by_side(arguments.runs))
    elif arguments.command == "label":
        absent = {*arguments.untag} - {*read_labels(arguments.folder).tags}
        labels = write_labels(
            arguments.folder, arguments.name, arguments.tag, arguments.untag, arguments.note
        )
        remark = f"; it had no tag {', '.join(sorted(absent))}" if absent else ""
        print(f"{arguments.folder}: {labels}{remark}")
    else:
        from kindling.records.removal import remove_all, useless

        clean = arguments.command == "clean"
        folders = useless() if clean else dict.fromkeys(arguments.folders, "")
        print(remove_all(folders, ask=not arguments.yes))


def _require_meaning(text: str) -> None:
    """Raises InputError for a first argument that is neither a command nor a folder, but nearly a
    command."""
    from kindling.config.faults import did_you_mean
    from kindling.records.lookup import find

    hint = "" if text in COMMANDS or Path(text).exists() else did_you_mean(text, COMMANDS)
    if hint and not find(text).exists():
        raise InputError(f"{text}: is neither a command nor a folder{hint}")
