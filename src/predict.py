"""Tells which class a picture or a sample is of, by a trained model.

python -m src.predict RUN IMAGE ...           RUN: a run folder or a .ckpt file
python -m src.predict RUN FOLDER              every PNG and JPEG of a folder
python -m src.predict RUN IMAGE --csv FILE    for programs; - is the standard output
python -m src.predict RUN SAMPLES.npz         x (N, ...) as the model takes it: bytes, or floats
                                              from 0 to 1; with labels y (N,) the accuracy too
python -m src.predict RUN TABLE.csv           of a run on a table: rows with its columns

A picture is a PNG or JPEG, of any size. For runs on digits it shows one, dark on light or light on
dark, which is scaled and centred as MNIST's were; for runs on photographs it is resized as it is.
What .npz holds must be prepared already; a table's numbers are standardised as in training.

Each input is compared with the run's training data where they are on this machine. The table's
note says when an input is unlike them, or when a picture of a run on digits has several drawings.
With --csv, `drawings` counts them and `unlikeness` is above 1 for an input that is unlike.

Exit status: 0; 1 when some files could not be read, which are listed, and the others were
answered; 2 when none was.
"""

import sys
from pathlib import Path

from src.system.commands import command_parser
from src.system.errors import all_at_once
from src.system.process import importing, run


def main() -> None:
    parser = command_parser("predict", __doc__)
    parser.add_argument("run", type=Path, help="a run folder, or a checkpoint file")
    parser.add_argument(
        "images", type=Path, nargs="+", metavar="IMAGE", help="PNG, JPEG, .npz, .csv, or a folder"
    )
    parser.add_argument(
        "--invert",
        choices=("auto", "yes", "no"),
        default="auto",
        help="whether the pictures are dark on light; auto (the default) looks at each",
    )
    parser.add_argument("--csv", metavar="FILE", help="write every row there; - prints them alone")
    parser.add_argument("--force", action="store_true", help="replace FILE where it exists")
    arguments = parser.parse_args()
    from src.inference.inputs import read_request

    request = read_request(
        arguments.run, arguments.images, arguments.invert, arguments.csv, arguments.force
    )
    with importing():
        from src.inference.prediction import answer

    found = answer(request)
    print(found.text, end="", flush=True)
    for note in found.notes:
        print(note, file=sys.stderr)
    if found.faults:
        faults = all_at_once(found.faults, "the other files were answered")
        print(f"error: {faults}", file=sys.stderr)
        raise SystemExit(1)


if __name__ == "__main__":
    run(main)
