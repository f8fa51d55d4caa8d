"""A model beside baselines on the same test rows, as result.json has it and as people read it."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kindling.config.measures import in_words, score_of
from kindling.records.confidence import LEVEL
from kindling.records.outcome import format_metric

INTERVAL = f"{LEVEL:.0%} interval"


def compared_rows(task: str | None, found: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, str]]:
    """A row of texts for each entry of `compared` in result.json."""
    score = score_of(task)
    for each in found:
        less = each["less"]
        yield {
            "on the test rows": each["name"],
            in_words(score): format_metric(score, each["score"]),
            INTERVAL: _between(*(format_metric(score, each[end]) for end in ("low", "high"))),
            "the model less this": "" if less is None else _signed(score, less[0]),
            f"{INTERVAL} of that": "" if less is None else _between(
                *(_signed(score, end) for end in less[1:])
            ),
        }  # fmt: skip


def _between(low: str, high: str) -> str:
    return f"{low} to {high}"


def _signed(score: str, value: float) -> str:
    """A difference, of accuracies in points."""
    return f"{100 * value:+.1f} points" if score == "acc" else f"{value:+.3f}"
