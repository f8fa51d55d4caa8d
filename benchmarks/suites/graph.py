"""An epoch by the kind of step, with and without a CUDA graph."""

from functools import partial

from benchmarks.contenders import can_compile
from benchmarks.questions import SMALL, Question, answer, devices, epoch, on
from benchmarks.settings import Settings


def run(settings: Settings) -> tuple[str, str]:
    contenders, ratios = {}, {}
    for device in devices(settings.accelerators):
        ways = {"autograd": "trainer.step=autograd", "closed_form": "trainer.step=closed_form"}
        if device == "cuda" or can_compile():
            ways["compiled autograd"] = "trainer.compile=true"
        for kind, override in ways.items():
            contenders[f"{kind} on {device}"] = partial(epoch, on(device), *SMALL, override)
        if device == "cuda":
            eager = "closed_form without graph on cuda"
            contenders[eager] = partial(
                epoch, on(device), *SMALL, ways["closed_form"], "trainer.cuda_graph=false"
            )
            contenders["kernel on cuda"] = partial(epoch, on(device), *SMALL)
            ratios["closed_form/kernel"] = ("closed_form on cuda", "kernel on cuda")
            ratios["without graph/with graph"] = (eager, "closed_form on cuda")
        for kind in list(ways)[1:]:
            name = f"{kind} on {device}"
            ratios[f"autograd/{name}"] = (f"autograd on {device}", name)
    return answer(settings, Question("kind of step, 784-32-10", contenders, ratios))
