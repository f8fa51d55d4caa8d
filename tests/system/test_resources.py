"""Cores and memory of this machine."""

import os
import platform
from pathlib import Path

import pytest
import torch

from kindling.system import machine, resources
from kindling.system.errors import InputError
from kindling.system.units import MIB


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


GIB = 2**30
CASES = {  # /proc/self/cgroup; files below /sys/fs/cgroup; the cores and the free bytes, or None
    "no groups": ("", {}, None, None),
    "version 2 in a container": (
        "0::/", {"cpu.max": "150000 100000", "memory.max": f"{GIB}",
                 "memory.current": f"{GIB // 4}",
                 "memory.stat": f"anon 5\ninactive_file {GIB // 8}\nactive_file 7"},
        2, GIB - GIB // 4 + GIB // 8,
    ),
    "version 2 without limits": (
        "0::/", {"cpu.max": "max 100000", "memory.max": "max", "memory.current": "5"}, None, None,
    ),
    "version 2, an outer group limits": (
        "0::/user.slice/job/step",
        {"user.slice/job/step/cpu.max": "max 100000", "user.slice/job/cpu.max": "300000 100000",
         "user.slice/cpu.max": "400000 100000", "user.slice/memory.max": f"{GIB}",
         "user.slice/memory.current": "0", "user.slice/job/memory.max": f"{2 * GIB}",
         "user.slice/job/memory.current": f"{GIB + 1}", "other/cpu.max": "100000 100000"},
        3, GIB - 1,
    ),
    "version 2, a path of the host": (
        "0::/docker/0123", {"cpu.max": "50000 100000", "memory.max": "4096", "memory.current": "0"},
        1, 4096,
    ),
    "version 1": (
        "5:memory:/docker/ab\n4:cpu,cpuacct:/docker/ab\n3:cpuset:/",
        {"cpu,cpuacct/docker/ab/cpu.cfs_quota_us": "250000",
         "cpu,cpuacct/docker/ab/cpu.cfs_period_us": "100000",
         "memory/docker/ab/memory.limit_in_bytes": f"{GIB}",
         "memory/docker/ab/memory.usage_in_bytes": f"{GIB // 2}",
         "memory/docker/ab/memory.stat": f"inactive_file 5\ntotal_inactive_file {GIB // 4}",
         "cpuset/cpu.cfs_quota_us": "100000", "cpuset/cpu.cfs_period_us": "100000"},
        3, GIB - GIB // 4,
    ),
    "version 1 in a container": (
        "5:memory:/docker/ab\n4:cpu,cpuacct:/docker/ab",
        {"cpu/cpu.cfs_quota_us": "100000", "cpu/cpu.cfs_period_us": "50000",
         "memory/memory.limit_in_bytes": "1000", "memory/memory.usage_in_bytes": "2000"},
        2, 0,
    ),
    "version 1 without limits": (
        "5:memory:/\n4:cpu:/",
        {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000",
         "memory/memory.limit_in_bytes": "9223372036854771712",
         "memory/memory.usage_in_bytes": "9"},
        None, None,
    ),
    "both versions": (
        "4:memory:/job\n1:name=systemd:/\n0::/job",
        {"unified/job/cpu.max": "200000 100000", "memory/job/memory.limit_in_bytes": "5000",
         "memory/job/memory.usage_in_bytes": "1000"},
        2, 4000,
    ),
    "nonsense": (
        "x\n0::/../..\n1:cpu\n2:memory:/a\n0::/b",
        {"b/cpu.max": "", "b/memory.max": "lots", "memory/a/memory.limit_in_bytes": "",
         "b/memory.current": "\0"},
        None, None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_limits_of_containers(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, files, cores, free = CASES[case]
    for name, content in files.items():
        (tmp_path / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "groups" / name).write_text(content + "\n")
    (tmp_path / "cgroup").write_text(own)
    (tmp_path / "meminfo").write_text("MemTotal: 99 kB\nMemAvailable:  123456789 kB\n")
    monkeypatch.setattr(resources, "OWN_GROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(resources, "GROUPS", tmp_path / "groups")
    monkeypatch.setattr(resources, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)
    resources.cpu_quota.cache_clear()
    try:
        assert resources.cpu_quota() == cores
        assert resources.cpu_count() == (cores or 64)
        limited = cores is not None or free is not None
        huge = case == "version 1 without limits"  # which says so by a number
        assert resources.is_limited() == (limited or huge)
        assert resources.free_memory() == (123456789 * 1024 if free is None else free)
        threads = torch.get_num_threads()
        with machine.torch_threads(16):
            machine.use_own_share()
            assert torch.get_num_threads() == (cores or 16)
        assert torch.get_num_threads() == threads
    finally:
        resources.cpu_quota.cache_clear()
