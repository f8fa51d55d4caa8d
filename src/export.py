# PYTHON_ARGCOMPLETE_OK
"""Exports a trained model for other programs, and compares the exported file with the model.

python -m src.export RUN                          RUN/model.onnx; RUN: a run folder or a .ckpt file
python -m src.export RUN --format torch           RUN/model.pt2, for torch.export.load
python -m src.export RUN --format safetensors     RUN/model.safetensors, weights and configuration
python -m src.export RUN --output FILE --force    another name; replace an existing file
"""

from pathlib import Path

from src.system.arguments import command_parser, completed_by
from src.system.process import importing, run
from src.system.signals import handled


def main() -> None:
    from src.inference.formats import FORMATS, plan
    from src.runs.lookup import MODEL, finder, typed_folders

    parser = command_parser("export", __doc__)
    completed_by(
        parser.add_argument(
            "run", type=finder(MODEL), metavar="RUN", help="a run folder, or a checkpoint file"
        ),
        typed_folders,
    )
    parser.add_argument("--format", choices=FORMATS, default="onnx", help="default: onnx")
    parser.add_argument("--output", metavar="FILE", type=Path, help="default: in RUN, model.*")
    parser.add_argument("--force", action="store_true", help="replace an existing file")
    arguments = parser.parse_args()
    with handled(rank=False):
        planned = plan(arguments.run, arguments.format, arguments.output, force=arguments.force)
        with importing():
            from src.inference.exporters import export, report

        print(report(export(planned)))


if __name__ == "__main__":
    run(main)
