# PYTHON_ARGCOMPLETE_OK
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

from src.system.arguments import command_parser, completed_by
from src.system.errors import InputError
from src.system.process import importing, run


def main() -> None:
    from src.config.faults import options
    from src.inference.copies import MOST_COPIES, read_copies
    from src.inference.inputs import OWN, require_labelled
    from src.runs.lookup import MODEL, finder, typed_folders
    from src.runs.weights import checkpoint_of

    parser = command_parser("evaluate", __doc__)
    completed_by(
        parser.add_argument(
            "run", type=finder(MODEL), metavar="RUN", help="a run folder, or a checkpoint file"
        ),
        typed_folders,
    )
    completed_by(
        parser.add_argument(
            "--data",
            metavar="DATA",
            help="the name of a data set, or labelled samples: a .csv or .npz file, or a folder of "
            "pictures for each class; default: the test set of the training",
        ),
        lambda **_: [name for name in options("data") if name not in OWN],
    )
    parser.add_argument(
        "--top-k",
        type=int,
        metavar="K",
        help="1 to the number of classes, default: 5, if there are more classes",
    )
    parser.add_argument(
        "--calibrate", action="store_true", help="compare probabilities with accuracy"
    )
    parser.add_argument(
        "--augmented",
        type=int,
        metavar="N",
        help="average over each sample and N copies by the augmentation of the training; "
        f"1 to {MOST_COPIES:,}, default: no copies",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    # Wrong arguments are reported before torch is imported.
    checkpoint_of(arguments.run)
    copies = read_copies(arguments.run, arguments.augmented)
    if arguments.top_k is not None and arguments.top_k < 1:
        raise InputError(f"--top-k {arguments.top_k}: must be 1 or more")
    if arguments.data:
        require_labelled(arguments.data)
    with importing():
        from src.inference.calibration import report

    found = report(
        arguments.run, arguments.data, arguments.top_k, copies,
        calibrated=arguments.calibrate, as_json=arguments.json,
    )  # fmt: skip
    print(found)


if __name__ == "__main__":
    run(main)
