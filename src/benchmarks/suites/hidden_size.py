"""An epoch by the number of hidden units, and the part of it that is matrix products.

A device that only multiplies faster saves at most that part.
"""

from dataclasses import replace
from functools import partial

from src.benchmarks.products import products
from src.benchmarks.questions import answer, by_size, devices, epoch
from src.benchmarks.settings import Settings


def run(settings: Settings) -> tuple[str, str]:
    sizes, samples = (32, 128, 512, 2048), 5000
    question = by_size(
        "hidden units, 784-n-10",
        sizes,
        lambda size: partial(epoch, f"model.hidden_sizes=[{size}]", samples=samples),
    )
    contenders, ratios = dict(question.contenders), dict(question.ratios)
    for device in devices():
        for size in sizes:
            whole, part = f"{size} on {device}", f"{size} on {device}, products alone"
            contenders[part] = products(samples, hidden=size, device=device)
            ratios[f"whole/products, {whole}"] = (whole, part)
    return answer(settings, replace(question, contenders=contenders, ratios=ratios))
