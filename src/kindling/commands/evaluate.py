"""Tests a trained model on a test set.

python -m src.evaluate RUN                   RUN: a run folder or a .ckpt file
python -m src.evaluate RUN --data digits     on another data set than the model was trained on
python -m src.evaluate RUN --data new.csv    on your own rows, all of them; also .npz, or a folder
                                             of pictures for each class
python -m src.evaluate RUN --top-k 3         how often the label is among the 3 most probable
python -m src.evaluate RUN --calibrate       also calibration, before and after temperature scaling
python -m src.evaluate RUN --augmented 10    mean over each sample and 10 augmented copies of it
python -m src.evaluate RUN --json            for other programs
"""

import json
import sys

from kindling.system.arguments import command_parser
from kindling.system.errors import InputError
from kindling.system.process import importing, log_to


def main() -> None:
    from kindling.config.faults import options
    from kindling.inference.inputs import AND_COPIES, OWN, read_copies, require_labelled
    from kindling.records.lookup import add_run, checkpoint_of

    parser = command_parser("evaluate", __doc__)
    add_run(parser)
    parser.value(
        "--data", "DATA",
        "the name of a data set, or labelled samples: a .csv or .npz file, or a folder of "
        "pictures for each class; default: the test set of the training",
        completer=lambda **_: [name for name in options("data") if name not in OWN],
    )  # fmt: skip
    parser.value(
        "--top-k", "K", "1 to the number of classes, default: 5, if there are more classes",
        type=int,
    )  # fmt: skip
    parser.flag("--calibrate", "compare probabilities with accuracy")
    averaged = f"average over each sample {AND_COPIES}"
    parser.value("--augmented", "N", averaged, type=int)
    parser.flag("--json", "print one JSON object")
    arguments = parser.parse_args()
    # Wrong arguments are reported before torch is imported.
    checkpoint_of(arguments.run)
    copies = read_copies(arguments.run, arguments.augmented)
    if arguments.top_k is not None and arguments.top_k < 1:
        raise InputError(f"--top-k {arguments.top_k}: must be 1 or more")
    if arguments.data:
        require_labelled(arguments.data)
    with importing():
        from kindling.inference.evaluation import evaluate_path

    log_to(sys.stderr)
    found = evaluate_path(
        arguments.run, arguments.data, arguments.top_k, copies, calibrated=arguments.calibrate
    )
    print(json.dumps(found.to_primitives()) if arguments.json else found.describe())
