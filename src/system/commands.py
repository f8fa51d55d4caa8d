"""The parser that every command shares."""

import argparse


def command_parser(name: str, docstring: str | None) -> argparse.ArgumentParser:
    """The parser of `python -m src.NAME`.

    The first line of the docstring describes the command in its help; the other lines follow the
    arguments.
    """
    summary, _, usage = (docstring or "").partition("\n")
    return argparse.ArgumentParser(
        f"python -m src.{name}",
        description=summary,
        epilog=usage,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
