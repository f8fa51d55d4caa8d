"""Tests a trained model on a test set.

python -m src.evaluate RUN                   RUN: a run folder or a .ckpt file
python -m src.evaluate RUN --data digits     on another data set than the model was trained on
python -m src.evaluate RUN --top-k 3         how often the label is among the 3 most probable
python -m src.evaluate RUN --json            for other programs
"""

import json
from pathlib import Path

from src.runs.folder import checkpoint_of
from src.system.process import command_parser, importing, run


def main() -> None:
    parser = command_parser("evaluate", __doc__)
    parser.add_argument("run", type=Path, help="a run folder, or a checkpoint file")
    parser.add_argument("--data", metavar="NAME", help="data set; default: that of the training")
    parser.add_argument(
        "--top-k", type=int, metavar="K", help="default: 5, if there are more classes"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    # Wrong arguments are reported before torch is imported.
    checkpoint_of(arguments.run)
    if arguments.data:
        from src.config.compose import compose

        compose(f"data={arguments.data}")
    with importing():
        from src.inference.evaluation import describe, evaluate_path

    found = evaluate_path(arguments.run, arguments.data, arguments.top_k)
    print(json.dumps(found.to_primitives()) if arguments.json else describe(found))


if __name__ == "__main__":
    run(main)
