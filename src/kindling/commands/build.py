"""Builds the engine for CPUs with this machine's C compiler.

python -m src.build
"""

from kindling.system.arguments import command_parser


def main() -> None:
    command_parser("build", __doc__).parse_args()
    from kindling.native.compiler import build, find

    built = build()
    for file in built:
        print(file)
    if not built:
        print(find()[1])
