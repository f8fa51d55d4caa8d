"""The committee that the tests of inference make."""

from tests.inference.conftest import committee, sweep

__all__ = ["committee", "sweep"]
