"""What the process that ranks are forked from imports (src/system/process.py)."""

from src.system.process import importing

with importing():
    import src.training.fit  # noqa: F401
