"""Predicts the classes of pictures or samples with a trained model.

python -m src.predict RUN IMAGE ...           RUN: a run folder or a .ckpt file
python -m src.predict RUN FOLDER              every PNG and JPEG of a folder
python -m src.predict RUN IMAGE --csv FILE    for programs; - is the standard output
python -m src.predict RUN SAMPLES.npz         x (N, ...) as the model takes it: bytes, or floats
                                              from 0 to 1; labels y (N,) give the accuracy too
python -m src.predict RUN TABLE.csv           for a run on a table: rows with the same columns

A picture is a PNG or JPEG file of any size. For runs on digits, a picture shows one digit, dark on
light or light on dark; the digit is scaled and centred as in MNIST. For runs on photographs, the
whole picture is resized. Samples in a .npz file must be prepared already. The numbers of a table
are standardised as in training.

Each input is compared with the training data of the run, if the data are on this machine. A note
in the table says when an input is unlike the training data, or when a picture for a run on digits
shows several drawings. With --csv, `drawings` is their number, and `unlikeness` is above 1 for
inputs unlike the training data.

Exit status: 0; 1 when some files could not be read (they are listed); 2 when no file could be read.
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
        help="whether the pictures are dark on light; default: auto, decided for each picture",
    )
    parser.add_argument(
        "--csv", metavar="FILE", help="write all rows to FILE; - prints only the rows"
    )
    parser.add_argument("--force", action="store_true", help="replace an existing FILE")
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
