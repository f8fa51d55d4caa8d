"""Cores and memory of this machine."""

import os
import platform

import pytest
import torch

from src.system import resources
from src.system.errors import InputError
from src.system.files import MIB


def test_only_the_cores_that_the_process_may_use_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {2, 5, 7}, raising=False)
    assert resources.cpu_count() == 3


def test_free_memory_is_less_than_all_memory() -> None:
    assert 0 < resources.free_memory() < os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def test_too_little_memory_names_both_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "free_memory", lambda: 100 * MIB)
    resources.require_memory("the pictures need", 100 * MIB, "data.size=8")
    message = "the pictures need 2,000 MiB of memory, but only 100 MiB are free; type data.size=8"
    with pytest.raises(InputError, match=message):
        resources.require_memory("the pictures need", 2000 * MIB, "data.size=8")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you"), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"), True),
        (RuntimeError("CUDA error: device-side assert triggered"), False),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
    ],
)
def test_errors_that_say_that_memory_ran_out(error: BaseException, expected: bool) -> None:
    assert resources.out_of_memory(error) == expected


def test_versions_are_those_that_are_imported() -> None:
    found = resources.versions()
    assert found["torch"] == torch.__version__.partition("+")[0]
    assert found["python"] == platform.python_version()
