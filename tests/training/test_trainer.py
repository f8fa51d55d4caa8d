"""Lightning's Trainer as a run configures it."""

import json

from tests.helpers.commands import Train


def test_a_profile_lies_in_the_run_folder(train: Train) -> None:
    run = train("trainer.profiler=simple")
    assert (
        "[Strategy]SingleDeviceStrategy.training_step"
        in (run.folder / "fit-profile.txt").read_text()
    )
    run = train("trainer.profiler=pytorch", "trainer.step=autograd")
    assert "aten::" in (run.folder / "fit-profile.txt").read_text()  # the slowest
    (trace, *_) = run.folder.glob("fit-profile*.trace.json")
    assert "aten::addmm" in {
        event["name"] for event in json.loads(trace.read_text())["traceEvents"]
    }
