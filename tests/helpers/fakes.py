"""Run folders that no training has made: the files of one run, with other settings and values."""

import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from kindling.records.folder import Run, csv_text

BEGINNING = datetime(2026, 3, 1)
RATES, WIDTHS = ("0.003", "0.01", "0.03", "0.1", "0.3"), ("[16]", "[32]", "[64]", "[128]")
WORDS = ("base", "wide", "small", "tuned", "first")


def fake_run(folder: Path, model: Run, settings: Mapping[str, str], better: float = 0.0) -> Run:
    """A finished run with these settings, which the configuration of `model` has too. Its
    accuracies are those of `model` and `better`."""
    run = Run(folder)
    run.config_file.parent.mkdir(parents=True)
    run.config_file.write_text(_with_settings(model.config_file.read_text(), settings))
    run.overrides_file.write_text(json.dumps([f"{key}={own}" for key, own in settings.items()]))
    rows = [
        {name: _moved(name, value, better) for name, value in row.items()} for row in model.history
    ]
    run.history_file.write_text(csv_text([*rows[0]], rows))
    result: dict[str, Any] = dict(model.result)
    best = max(rows[1:], key=lambda row: row["val/acc"] or 0)
    result["best"] = {name: best[name] for name in result["best"]}
    result["last"] = {name: rows[-1][name] for name in result["last"]}
    result["test/acc"] = _moved("test/acc", result["test/acc"], better)
    run.result_file.write_text(json.dumps(result))
    run.log_file.write_text("trained\n")
    return run


def _with_settings(text: str, settings: Mapping[str, str]) -> str:
    """The text of a configuration with other values. To compose one takes ten times as long."""
    for key, value in settings.items():
        section, _, name = key.rpartition(".")
        # A list in several lines is replaced by its short form.
        indent = "  " if section else ""
        own = re.compile(rf"^{indent}{name}:[^\n]*\n(?: *- [^\n]*\n)*", re.MULTILINE)
        found = own.search(text, text.index(f"\n{section}:\n") if section else 0)
        assert found, key
        text = f"{text[: found.start()]}{indent}{name}: {value}\n{text[found.end() :]}"
    return text


def _moved(name: str, value: Any, better: float) -> Any:
    if value is None:
        return None
    if name.endswith("/acc"):
        return min(1.0, max(0.0, value + better))
    return value * (1 - better) if name.endswith("/loss") else value


def fake_runs(base: Path, model: Run, count: int, seed: int = 0) -> Iterator[Run]:
    """So many single runs in base/runs, a minute after each other; some with names and tags."""
    draw = random.Random(seed)
    for number in range(count):
        moment = BEGINNING + timedelta(minutes=number)
        rate, width = draw.choice(RATES), draw.choice(WIDTHS)
        settings = {"model.hidden_sizes": width, "optimizer.lr": rate, "seed": str(number)}
        if number % 7 == 0:
            settings |= {"name": f"{draw.choice(WORDS)}-{number}", "tags": "[mnist,first]"}
        better = 0.02 * RATES.index(rate) + 0.01 * WIDTHS.index(width) + draw.gauss(0, 0.01) - 0.06
        yield fake_run(base / "runs" / f"{moment:%Y-%m-%d/%H-%M-%S}", model, settings, better)


def fake_sweep(
    folder: Path, model: Run, rates: Sequence[str] = RATES, seeds: Sequence[int] = (0, 1, 2)
) -> Path:
    """A finished sweep over rates and seeds."""
    draw = random.Random(str(folder.name))
    number = 0
    for rate in rates:
        for seed in seeds:
            better = 0.02 * RATES.index(rate) + draw.gauss(0, 0.01) - 0.05
            settings = {"optimizer.lr": rate, "seed": str(seed)}
            fake_run(folder / str(number), model, settings, better)
            number += 1
    typed = [f"optimizer.lr={','.join(rates)}", f"seed={','.join(map(str, seeds))}"]
    record = {"hydra": {"overrides": {"task": typed}}}
    (folder / "multirun.yaml").write_text(json.dumps(record))
    return folder
