"""What a report says of the machine and the libraries."""

import numpy as np
import scipy
import torch

from benchmarks.environment import blas, describe_environment, environment
from kindling.native import engine
from kindling.system.resources import cpu_flags


def test_a_report_names_the_machine_and_the_libraries() -> None:
    found = environment()
    assert found["engine"] == engine.state()
    assert found["hardware"]["threads"] == torch.get_num_threads()
    assert {*found["hardware"]["vector_instructions"]} <= cpu_flags()
    assert found["versions"]["numpy"] == np.__version__
    assert found["versions"]["scipy"] == scipy.__version__
    assert {*found["blas"]} == {"torch", "numpy", "scipy"}
    text = describe_environment(found)
    named = (found["hardware"]["model"], found["engine"], found["versions"], found["blas"])
    for part in named:
        values = part.values() if isinstance(part, dict) else [part]
        assert all(value in text for value in values if value)


def test_the_libraries_that_multiply_matrices() -> None:
    found = blas()
    built = torch.__config__.show()
    name, *version = found["torch"].split()
    assert f"BLAS_INFO={name}" in built
    assert all(f"Math Kernel Library Version {text}" in built for text in version)
    described = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    assert found["numpy"] == f"{described['name']} {described['version']}"
