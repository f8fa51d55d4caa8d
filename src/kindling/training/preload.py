"""What the process that ranks are forked from imports (system/process.py)."""

from kindling.system.process import importing

with importing():
    import torch._dynamo  # noqa: F401  # else each rank imports it, for its first optimizer step

    import kindling.training.fit  # noqa: F401
