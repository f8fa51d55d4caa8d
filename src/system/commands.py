"""The parser that every command shares."""

import argparse


def command_parser(name: str, docstring: str | None, more: str = "") -> argparse.ArgumentParser:
    """The parser of `python -m src.NAME`.

    The first line of the command's docstring describes the command in its help; the other lines
    and `more` follow the arguments.
    """
    summary, _, usage = (docstring or "").partition("\n")
    return argparse.ArgumentParser(
        f"python -m src.{name}",
        description=summary,
        epilog=usage + more,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
