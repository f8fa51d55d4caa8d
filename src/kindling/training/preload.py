"""What the process that ranks are forked from imports (system/process.py)."""

from kindling.system.process import importing

with importing():
    import kindling.training.fit  # noqa: F401
