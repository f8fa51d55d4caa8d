"""Fuzzes what reads files of the project's own formats, tables and command lines: bytes that reach
new code are kept and changed further (atheris, which is libFuzzer for Python).

python -m tests.fuzz              each kind for a minute
python -m tests.fuzz table 600    one kind, for ten minutes

Whatever is raised but InputError, 20 s and 4 GB are findings: the bytes lie in .fuzz/KIND then.
"""

import logging
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tests.helpers.mutations import PNG, pictures, sealed, signed, unsigned

FOLDER = Path(".fuzz")
BOUNDS = ("-timeout=20", "-rss_limit_mb=4096", "-max_len=20000")
COUNTED = ["kindling.config", "kindling.data", "kindling.records", "kindling.system", "csv", "yaml"]
KINDS = (
    "result", "history", "overrides", "config", "labels", "importance", "search", "checkpoint",
    "bundle", "table", "arrays", "png", "jpeg", "idx", "command",
)  # fmt: skip


def readers(folder: Path) -> dict[str, Callable[[bytes], object]]:
    """For each kind, a function that writes bytes as such a file into the folder, and uses all that
    can be read of it."""
    from kindling.config.compose import compose, overrides_of
    from kindling.data.sources.catalogue import open_source
    from kindling.data.sources.published import read_idx
    from kindling.inference.inputs import read_inputs
    from kindling.records import outcome
    from kindling.records.bundle import open_bundle
    from kindling.records.checkpoint import read
    from kindling.records.folder import Run
    from kindling.records.labels import read_labels
    from kindling.records.listing import read_entry
    from kindling.records.sweep_folder import read_importance, read_search

    run = Run(folder / "0")
    run.config_file.parent.mkdir(parents=True, exist_ok=True)

    def file(name: str, use: Callable[[Path], object]) -> Callable[[bytes], object]:
        def write_and_use(content: bytes) -> object:
            path = folder / name
            path.write_bytes(content)
            return use(path)

        return write_and_use

    def of_run(path: Path) -> object:
        del path
        found = outcome.read_outcome(run)
        told = (found.value, found.rank, found.reason, found.seconds, found.group, found.epochs)
        return (
            told,
            run.ended,
            run.history,
            run.command,
            outcome.row_of(found),
            read_entry(run.folder),
        )

    def of_config(path: Path) -> object:
        del path
        return run.config.hash(), overrides_of(run.config), run.why_no_weights

    def data(name: str, *keys: str) -> Callable[[Path], object]:
        def use(path: Path) -> object:
            config = compose(f"data={name}", f"data.path={path}", *keys)
            return open_source(config.data, config.task)

        return use

    def picture(path: Path) -> object:
        return read_inputs([path])

    def command(content: bytes) -> object:
        return compose(*content.decode(errors="surrogateescape").split("\n"))

    return {
        "result": file("0/result.json", of_run),
        "history": file("0/history.csv", of_run),
        "overrides": file("0/.hydra/overrides.yaml", of_run),
        "config": file("0/.hydra/config.yaml", of_config),
        "labels": file("0/labels.json", lambda path: read_labels(path.parent)),
        "importance": file("importance.json", lambda path: read_importance(path.parent)),
        "search": file("search.yaml", lambda path: read_search(path.parent)),
        "checkpoint": lambda content: file("last.ckpt", read)(signed(content)),
        "bundle": file("run.zip", lambda path: open_bundle(path, path.with_suffix(""), None)),
        "table": file("table.csv", data("csv", "data.target=class")),
        "arrays": file("arrays.npz", data("npz")),
        # Each chunk gets a right checksum, which the decoder demands.
        "png": lambda content: file("picture.png", picture)(sealed(content)),
        "jpeg": file("picture.jpg", picture),
        "idx": file("labels-idx1-ubyte", lambda path: read_idx(path, None, "a set")),
        "command": command,
    }


def seeds(folder: Path) -> dict[str, bytes]:
    """Content of each kind that is right."""
    import numpy as np

    from kindling import compose, fit
    from kindling.records.bundle import write_bundle
    from kindling.records.labels import write_labels

    run = fit(compose("data=toy", "trainer.max_epochs=2", "model.hidden_sizes=[4]"), folder / "run")
    write_labels(run.folder, "name", ["tag"], note="a note")
    write_bundle([run.folder], folder / "run.zip")
    np.savez(folder / "arrays.npz", x=np.eye(20, dtype="float32"), y=np.arange(20) % 2)
    rows = "".join(f"{n / 7:.3f},{'xyz'[n % 3]},{n % 2}\n" for n in range(20))
    files = {
        "result": run.result_file,
        "history": run.history_file,
        "overrides": run.overrides_file,
        "config": run.config_file,
        "labels": run.folder / "labels.json",
        "checkpoint": run.last_checkpoint,
        "bundle": folder / "run.zip",
        "arrays": folder / "arrays.npz",
    }
    found = {kind: file.read_bytes() for kind, file in files.items()}
    return found | {
        "checkpoint": unsigned(found["checkpoint"]),  # the bytes under the checksum are fuzzed
        "importance": b'{"explained alone": {"optimizer.lr": [0.75, 0.5, 0.9]}}',
        "search": b"[optimizer.lr=tag(log\\,interval(0.001\\,1)), search.trials=9]",
        "table": f"length,colour,class\n{rows}".encode(),
        "png": pictures()[0],
        "jpeg": pictures()[-1],
        "idx": b"\0\0\x08\x01\0\0\0\x64" + bytes(range(100)),
        "command": b"optimizer.lr=0.1\nmodel.hidden_sizes=[8,16]\ndata=digits",
    }


def fuzz(kind: str, corpus: Path, seconds: str) -> None:
    """Ends the process."""
    import atheris  # type: ignore[import-not-found,import-untyped,unused-ignore]

    from kindling.system import files
    from kindling.system.errors import InputError

    logging.disable()
    warnings.simplefilter("ignore")
    files.SETTLED = sys.maxsize  # a file changes more often than its time
    with tempfile.TemporaryDirectory() as folder:
        with atheris.instrument_imports(include=COUNTED):
            use = readers(Path(folder))
        for other in use:  # files of a run are read together
            with suppress(InputError):
                use[other]((FOLDER / other / "corpus" / "right").read_bytes())

        def one(content: bytes) -> None:
            with suppress(InputError):
                use[kind](content)

        findings = f"-artifact_prefix={corpus.parent}/"
        arguments = [sys.argv[0], str(corpus), f"-max_total_time={seconds}", findings, *BOUNDS]
        atheris.Setup(arguments, one)
        atheris.Fuzz()


def main(kinds: list[str], seconds: str) -> int:
    """The number of kinds with findings."""
    with tempfile.TemporaryDirectory() as folder:
        for kind, content in seeds(Path(folder)).items():
            corpus = FOLDER / kind / "corpus"
            corpus.mkdir(parents=True, exist_ok=True)
            (corpus / "right").write_bytes(content)
    for number, content in enumerate(pictures()):
        kind = "png" if content.startswith(PNG) else "jpeg"
        (FOLDER / kind / "corpus" / f"right{number}").write_bytes(content)
    found = 0
    for kind in kinds:
        command = [sys.executable, "-m", "tests.fuzz", "--here", kind, seconds]
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False
        )
        tries = next((line for line in done.stderr.split("\n") if line.startswith("Done ")), "")
        if done.returncode:
            found += 1
            (FOLDER / kind / "log").write_text(done.stderr)
        print(f"{kind}: {tries or f'a finding; see {FOLDER / kind}'}", flush=True)
    return found


if __name__ == "__main__":
    logging.disable(logging.INFO)
    names = [each for each in sys.argv[1:] if each in KINDS]
    time = next(filter(str.isdecimal, sys.argv), "60")
    if "--here" in sys.argv:
        fuzz(names[0], FOLDER / names[0] / "corpus", time)
    sys.exit(main(names or [*KINDS], time))
