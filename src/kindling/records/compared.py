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
        less = [_signed(score, value) for value in each["less"] or ()]
        low, high = (format_metric(score, each[end]) for end in ("low", "high"))
        yield {
            "on the test rows": each["name"],
            in_words(score): format_metric(score, each["score"]),
            INTERVAL: f"{low} to {high}",
            f"behind the model{', points' if score == 'acc' else ''}": less[0] if less else "",
            f"its {INTERVAL}": f"{less[1]} to {less[2]}" if less else "",
        }


def _signed(score: str, value: float) -> str:
    """A difference, of accuracies in points."""
    return f"{100 * value:+.1f}" if score == "acc" else f"{value:+.3f}"
