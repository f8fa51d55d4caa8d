"""Run folders that no training has made: the files of one run, with other settings and values."""

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from kindling.config.written import flat
from kindling.records.folder import Run, csv_text
from kindling.system.files import read_yaml

BEGINNING = datetime(2026, 3, 1)
RATES, WIDTHS = ("0.003", "0.01", "0.03", "0.1", "0.3"), ("[16]", "[32]", "[64]", "[128]")
WORDS = ("base", "wide", "small", "tuned", "first")


def fake_run(folder: Path, model: Run, settings: Mapping[str, str], better: float = 0.0) -> Run:
    """A finished run with these settings. Its accuracies are those of `model` and `better`."""
    run = Run(folder)
    run.config_file.parent.mkdir(parents=True)
    text = model.config_file.read_text()
    config = dict(flat(read_yaml(model.config_file)))
    for key, value in settings.items():
        text = _with_setting(text, key, value)
    assert {*settings} <= {*config}, settings
    run.config_file.write_text(text)
    run.overrides_file.write_text(json.dumps([f"{key}={own}" for key, own in settings.items()]))
    rows = [
        {name: _moved(name, value, better) for name, value in row.items()} for row in model.history
    ]
    run.history_file.write_text(csv_text([*rows[0]], rows))
    result: dict[str, Any] = dict(model.result)
    best = max(rows[1:], key=lambda row: row["val/acc"] or 0)
    result["best"] = {name: best[name] for name in result["best"]}
    result |= {"last": {name: rows[-1][name] for name in result["last"]}}
    result["test/acc"] = _moved("test/acc", result["test/acc"], better)
    run.result_file.write_text(json.dumps(result))
    run.log_file.write_text("trained\n")
    return run


def _with_setting(text: str, key: str, value: str) -> str:
    """The text of a configuration with another value. Lists stand in their short form."""
    lines, section, name = text.splitlines(), *(key.rpartition(".")[::2])
    inside, found = not section, list[str]()
    skipping = False
    for line in lines:
        if skipping and line.lstrip().startswith("- "):
            continue
        skipping = False
        if not line.startswith((" ", "-")):
            inside = line.startswith(f"{section}:") if section else True
        if inside and line.strip().startswith(f"{name}:") and line.startswith(" ") == bool(section):
            found.append(f"{'  ' if section else ''}{name}: {value}")
            skipping = True
        else:
            found.append(line)
    return "\n".join([*found, ""])


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
        settings = {
            "data": "digits", "model.hidden_sizes": width, "optimizer.lr": rate, "seed": str(number)
        }  # fmt: skip
        settings.pop("data")
        if number % 7 == 0:
            settings |= {"name": f"{draw.choice(WORDS)}-{number}", "tags": "[mnist,first]"}
        better = 0.02 * RATES.index(rate) + 0.01 * WIDTHS.index(width) + draw.gauss(0, 0.01) - 0.06
        yield fake_run(
            base / "runs" / f"{moment:%Y-%m-%d}" / f"{moment:%H-%M-%S}", model, settings, better
        )


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
