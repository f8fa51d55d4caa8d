"""The ways of a step, for tests of each."""

import pytest

from kindling.native.engine import why_absent

needs_engine = pytest.mark.skipif(bool(why_absent()), reason=why_absent() or "the engine is there")
NATIVE = pytest.param("native", marks=needs_engine)
FAST = [NATIVE, "closed_form"]
STEPS = [*FAST, "autograd"]
# What trainer.step=auto takes here.
AUTO = "closed_form" if why_absent() else "native"
