# PYTHON_ARGCOMPLETE_OK
"""Builds the engine for CPUs with this machine's C compiler.

python -m src.build
"""

from src.system.arguments import command_parser
from src.system.process import run


def main() -> None:
    command_parser("build", __doc__).parse_args()
    from src.native.compiler import build, find

    built = build()
    for file in built:
        print(file)
    if not built:
        print(find()[1])


if __name__ == "__main__":
    run(main)
