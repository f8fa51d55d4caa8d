"""Models without a closed form: trained side by side by torch.func.vmap, or one after the other."""

from collections.abc import Callable, Sequence

from benchmarks.questions import Question, answer, devices, on
from benchmarks.settings import Settings
from benchmarks.stacks import configure, stack, trials
from kindling.models import try_model

TRIALS = 8
# Channels, height and width of a picture, batch size, samples of an epoch.
CASES = (
    ([4, 8], 8, 32, 640), ([8, 16], 8, 64, 640),
    ([4, 8], 28, 32, 320), ([16, 32, 64], 28, 128, 256),
)  # fmt: skip


def run(settings: Settings) -> tuple[str, str]:
    contenders: dict[str, Callable[[], float]] = {}
    ratios = {}
    for device in devices(settings.accelerators):
        for channels, size, batch, samples in CASES:
            data = (
                "data=synthetic", f"data.shape=[1,{size},{size}]", f"data.samples={samples}",
                "data.test_samples=10", "data.val_fraction=null", f"data.batch_size={batch}",
            )  # fmt: skip
            common = (on(device), "model=cnn", f"model.channels={channels}", *data)
            config, opened = configure(*common)
            tried = try_model(config.model, opened.source.shape, opened.source.classes)
            name = f"{tried.operations * batch / 1e6:.3g} on {device}"
            pair = [f"{name}, {way}" for way in ("alone", "vmap")]
            contenders[pair[0]] = one_after_the_other(*common)
            contenders[pair[1]] = side_by_side(*common)
            ratios[f"alone/vmap, {name}"] = (pair[0], pair[1])
    axis = f"million operations of a model's forward pass of a batch; {TRIALS} trials"
    return answer(settings, Question(axis, contenders, ratios))


def side_by_side(*overrides: str) -> Callable[[], float]:
    config, data = configure(*overrides, "trainer.step=vmap")
    return stack(data, trials(config, _rates(), [0] * TRIALS)).train


def one_after_the_other(*overrides: str) -> Callable[[], float]:
    config, data = configure(*overrides, "trainer.step=autograd")
    singles = [stack(data, [one]) for one in trials(config, _rates(), [0] * TRIALS)]
    return lambda: sum(single.train() for single in singles)


def _rates() -> Sequence[float]:
    return [0.01 + 0.01 * trial for trial in range(TRIALS)]
