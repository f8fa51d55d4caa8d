"""An epoch on each device, by the size of the network."""

from functools import partial

from benchmarks.questions import LARGE, SMALL, Question, answer, devices, epoch, on
from benchmarks.settings import Settings

TUTORIAL = (  # the GPU guide's own network
    "model.hidden_sizes=[512,256]", "model.dropout=0.2", "optimizer=adam", "optimizer.lr=0.001",
    "data.batch_size=64",
)  # fmt: skip


def run(settings: Settings) -> tuple[str, str]:
    networks = {"784-32-10": SMALL, "784-512-256-10": TUTORIAL, "784-1024-1024-10": LARGE}
    contenders = {
        f"{name} on {device}": partial(epoch, on(device), *overrides)
        for name, overrides in networks.items()
        for device in devices(settings.accelerators)
    }
    ratios = {
        f"cpu/{device}, {name}": (f"{name} on cpu", f"{name} on {device}")
        for name in networks
        for device in devices(settings.accelerators)[1:]
    }
    return answer(settings, Question("network and device", contenders, ratios))
