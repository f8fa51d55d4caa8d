"""An epoch of a large network in each precision."""

from functools import partial

from benchmarks.questions import LARGE, Question, answer, devices, epoch, on
from benchmarks.settings import Settings


def run(settings: Settings) -> tuple[str, str]:
    contenders, ratios = {}, {}
    for device in devices(settings.accelerators):
        kinds = {"cpu": ("32", "64", "bf16-mixed"), "mps": ("32", "16-mixed")}.get(
            device, ("32", "64", "bf16-mixed", "16-mixed")
        )
        for kind in kinds:
            name = f"{kind} on {device}"
            contenders[name] = partial(
                epoch, on(device), f"trainer.precision={kind}", *LARGE, samples=5000
            )
            if kind != "32":
                ratios[f"32/{name}"] = (f"32 on {device}", name)
    return answer(settings, Question("precision, 784-1024-1024-10", contenders, ratios))
