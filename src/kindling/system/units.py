"""Seconds and bytes as people read them: the only place that formats these."""

MIB = 2**20


def seconds(value: float) -> str:
    """A measured time without its unit: two decimals below 100 s, else whole seconds."""
    return f"{value:.2f}" if value < 99.995 else f"{value:,.0f}"


def duration(value: float) -> str:
    """An estimated time in seconds, such as `45 s`, `12 min`, `3.5 h` or `2.1 days`."""
    for size, digits, unit in ((60, 0, "s"), (60, 0, "min"), (24, 1, "h")):
        if value < 1.5 * size:
            return f"{value:.{digits}f} {unit}"
        value /= size
    return f"{value:.1f} days"


def size(count: int) -> str:
    """Bytes, such as `340 KB` or `1.2 GB`."""
    number, unit = count / 1000, "KB"
    for larger in ("MB", "GB"):
        if number >= 999.5:
            number, unit = number / 1000, larger
    return f"{number:.{0 if number >= 9.95 else 1}f} {unit}"
