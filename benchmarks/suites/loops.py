"""An epoch of 784-32-10 at batch size 100 in the training loops that people use."""

from importlib.util import find_spec

from benchmarks.contenders import (
    RATE,
    bare,
    by_jax,
    by_numpy,
    can_compile,
    compiled,
    default_lightning,
    keras,
    ours,
    sklearn,
    tutorial,
)
from benchmarks.measure import interleave, ratio, report
from benchmarks.peak import large_products, operations, take_peak
from benchmarks.products import BATCH, CLASSES, HIDDEN, products
from benchmarks.settings import Settings
from benchmarks.stacks import ON_CPU, configure, stack
from kindling.data.sources.source import as_float
from kindling.system import machine


def run(settings: Settings) -> tuple[str, str]:
    machine.keep_freed_memory()  # as our run does, so that all contenders benefit
    config, data = configure(ON_CPU, f"data={settings.data}", f"optimizer.lr={RATE}")
    source, train = data.source, data.train
    tensors = as_float(train.features).flatten(1), train.labels
    loops = {
        "tutorial": tutorial(train, data.validations[0]),
        "bare": bare(*tensors),
        **({"compiled": compiled(*tensors)} if can_compile() else {}),
        "numpy": by_numpy(*tensors),
        **({"jax": by_jax(*tensors)} if find_spec("jax") else {}),
        "lightning": default_lightning(*tensors),
        "sklearn": sklearn(*tensors),
        **({"keras": keras(*tensors)} if find_spec("keras") else {}),
        "ours": ours(settings.data),
        "steps alone": stack(data, [config], loading=False),
    }
    contenders = {name: contender.train for name, contender in loops.items()}
    contenders |= {"products": products(len(train)), **large_products()}
    seconds = interleave(contenders, settings.rounds)
    peak = take_peak(seconds)
    others = [name for name in loops if name not in ("bare", "ours", "steps alone")]
    pairs = [("ours", "bare"), *((other, "ours") for other in others)]
    pairs += [("ours", "steps alone"), ("ours", "products")]
    ratios = {f"{above}/{below}": ratio(seconds, above, below) for above, below in pairs}
    needed = operations((784, HIDDEN, CLASSES), len(train))
    for name in ("ours", "steps alone", "products"):
        ratios[f"share of the peak, {name}"] = peak.share(needed, seconds[name])
    note = f"seconds per epoch: {len(train)} samples of {source.name}, batch {BATCH}, "
    note += f"{settings.rounds} rounds"
    if source.instead_of:
        note += f"; {source.name} instead of {source.instead_of}"
    table, line = report(
        "loops", seconds, ratios, data=source.name, instead_of=source.instead_of,
        peak=peak._asdict(),
    )  # fmt: skip
    return f"{note}\n{peak}\n\n{table}", line
