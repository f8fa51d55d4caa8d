"""Exports a trained model for other programs, and compares the exported file with the model.

python -m src.export RUN                          RUN/model.onnx; RUN: a run folder or a .ckpt file
python -m src.export RUN --columns                of a table: the file takes its columns as they are
python -m src.export RUN --format torch           RUN/model.pt2, for torch.export.load
python -m src.export RUN --format safetensors     RUN/model.safetensors, weights and configuration
python -m src.export RUN --output FILE --force    another name; replace an existing file
"""

from pathlib import Path

from kindling.system.arguments import command_parser
from kindling.system.process import importing
from kindling.system.signals import handled


def main() -> None:
    from kindling.inference.export.formats import FORMATS, plan
    from kindling.records.lookup import add_run

    parser = command_parser("export", __doc__)
    add_run(parser)
    parser.add_argument("--format", choices=FORMATS, default="onnx", help="default: onnx")
    parser.value("--output", "FILE", "default: in RUN, model.*", type=Path)
    parser.flag("--columns", "of a table: ONNX with the preparation, an input for each column")
    parser.flag("--force", "replace an existing file")
    arguments = parser.parse_args()
    with handled(rank=False):
        planned = plan(
            arguments.run, arguments.format, arguments.output,
            force=arguments.force, columns=arguments.columns,
        )  # fmt: skip
        with importing():
            from kindling.inference.export.export import export, report

        print(report(export(planned)))
