"""Predicts the class of pictures or samples with a trained model.

python -m src.predict RUN IMAGE ...           RUN: a run folder or a .ckpt file
python -m src.predict RUN FOLDER              all PNG and JPEG files in a folder
python -m src.predict RUN IMAGE --csv FILE    for other programs; - is the standard output
python -m src.predict RUN SAMPLES.npz         x (N, ...) as the model takes it: bytes, or floats
                                              from 0 to 1; with labels y (N,) also the accuracy
python -m src.predict RUN IMAGE --augmented 10
                                              mean over each picture and 10 augmented copies
python -m src.predict RUN PHOTO --boxes OUT.png
                                              all digits in one picture, and a picture of them
python -m src.predict RUN TABLE.csv           for a run on a table: rows with the same columns

A picture is a PNG or JPEG file of any size. For a run on digits, it shows one digit, dark on light
or light on dark; the digit is scaled and centred like those of MNIST. For a run on photographs, the
whole picture is resized. The samples of an .npz file must be prepared already. The numbers of a
table are standardised as in training.

With --boxes, digits are found on lined paper, in shadow and on a page that is turned by up to 36
degrees. They are read line by line. What is unlike all digits is said to be none. In the CSV, x, y,
width and height are the box of each drawing, in pixels of the upright picture.

Each input is compared with the run's training data, if they are on this machine. The column `note`
says when an input is unlike them, or when a picture for a run on digits has several drawings. With
--csv, the column `drawings` counts the drawings, and `unlikeness` is above 1 for an unlike input.

Exit status: 0: all inputs have a prediction. 1: some have not, and are listed. 2: none has.
"""

import sys
from pathlib import Path

from kindling.system.arguments import command_parser
from kindling.system.colour import YELLOW, paint, tell_error
from kindling.system.errors import all_at_once
from kindling.system.process import importing


def main() -> None:
    from kindling.inference.inputs import AND_COPIES, read_request
    from kindling.records.lookup import add_run

    parser = command_parser("predict", __doc__)
    add_run(parser)
    parser.value("images", "IMAGE", "PNG, JPEG, .npz, .csv, or a folder", type=Path, nargs="+")
    parser.add_argument(
        "--invert", choices=("auto", "yes", "no"), default="auto",
        help="whether pictures are dark on light; auto detects it for each, default: auto",
    )  # fmt: skip
    averaged = f"average over each input {AND_COPIES}"
    parser.value("--augmented", "N", averaged, type=int)
    parser.value(
        "--boxes", "OUT.png",
        "read all digits in one picture, and write a picture with their boxes", type=Path,
    )  # fmt: skip
    parser.value("--csv", "FILE", "write all rows to FILE; - prints only them")
    parser.flag("--force", "replace an existing file")
    arguments = parser.parse_args()
    request = read_request(
        arguments.run, arguments.images, arguments.invert, arguments.csv,
        force=arguments.force, augmented=arguments.augmented, boxes=arguments.boxes,
    )  # fmt: skip
    with importing():
        from kindling.inference.prediction import predict_request

    found = predict_request(request)
    print(found.text, end="", flush=True)
    for note in found.notes:
        print(paint(note, YELLOW, sys.stderr), file=sys.stderr)
    if found.faults:
        tell_error(all_at_once(found.faults, "the others have predictions"))
        raise SystemExit(1)
