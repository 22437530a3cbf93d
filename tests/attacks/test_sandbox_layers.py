"""Each layer of the recipe's sandbox alone, as the kernel sees it.

Together the layers hide each other's faults: without a network namespace the filter
still refuses sockets, without Landlock the mounts still hide files. So each is looked at
without the others, in a process of its own (``tests.sim.inside``), and the kernel is
asked; what the product says is in force is nobody's evidence. The control of each look
is the same look without the layer. Mutants: ``tests/mutants/sandbox.toml``.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from signal import SIGKILL
from typing import Any

import pytest

from sealift.train.sandbox import kernel as limits
from tests.sim.inside import demand, look

pytestmark = pytest.mark.distributed

READ_ONLY, NO_SETUID, NO_DEVICES, NO_ACCESS_TIME = 1, 2, 4, 1024


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Two folders with a file each, a port that listens, and this process."""
    for name in ("shown", "hidden"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_bytes(b"bytes")
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield {
            "SHOWN": str(tmp_path / "shown"),
            "HIDDEN": str(tmp_path / "hidden"),
            "PORT": str(server.getsockname()[1]),
            "OTHER": str(os.getpid()),
        }


def test_landlock_alone_leaves_the_shown_places_to_read(
    outside: dict[str, str],
) -> None:
    demand("landlock")
    found = look("files", "landlock", **outside)
    assert found == {
        "read shown": "done",
        "write shown": "EACCES",
        "make in shown": "EACCES",
        "read hidden": "EACCES",
        "write hidden": "EACCES",
        "list the root": "EACCES",
        "write a null device": "done",
    }


def test_without_landlock_all_of_it_is_done(outside: dict[str, str]) -> None:
    """The control of the test above."""
    assert set(look("files", **outside).values()) == {"done"}


def test_landlock_alone_keeps_from_network_and_processes(
    outside: dict[str, str],
) -> None:
    demand("landlock")
    found = look("connections", "landlock", **outside)
    if found["connect"] == "done" and version() < 4:
        pytest.skip("this machine lacks Landlock's rules for TCP")
    assert found["connect"] == "EACCES"
    assert found["signal"] == ("EPERM" if version() >= 6 else "done")
    assert set(look("connections", **outside).values()) == {"done"}  # control


def version() -> int:
    """Of the kernel's Landlock, by the kernel's own number."""
    import ctypes

    return int(ctypes.CDLL(None).syscall(444, None, ctypes.c_size_t(0), 1))


def test_every_namespace_is_another_one() -> None:
    demand("namespaces")
    assert look("world") == []


def test_namespaces_alone_show_a_few_places_to_read(outside: dict[str, str]) -> None:
    demand("namespaces")
    found = look("world_files", **outside)
    flags = found.pop("flags")
    assert flags & READ_ONLY
    assert flags & NO_SETUID
    assert flags & NO_DEVICES
    assert flags & NO_ACCESS_TIME
    assert found.pop("scratch flags") & (NO_SETUID | NO_DEVICES)
    assert found == {
        "read shown": "done",
        "write shown": "EROFS",
        "make in shown": "EROFS",
        "read hidden": "ENOENT",
        "make in the root": "EROFS",
        "make in the scratch": "done",
        "interfaces": ["lo"],
        "connect": "ENETUNREACH",
        "signal": "ESRCH",
        "number": 1,
        "host": "sealift",
    }


@pytest.mark.parametrize("part", ["seccomp", "landlock"])
def test_capabilities_and_new_privileges_are_gone(part: str) -> None:
    demand(part)
    found = look("status", part)
    kinds = {"CapInh", "CapPrm", "CapEff", "CapAmb"} | (
        {"CapBnd"} if os.geteuid() == 0 else set()  # nobody else may give that up
    )
    assert {kind: int(found[kind], 16) for kind in kinds} == dict.fromkeys(kinds, 0)
    assert found["NoNewPrivs"] == "1"
    assert found["Seccomp"] == ("2" if part == "seccomp" else "0")


def test_without_parts_the_kernel_says_otherwise() -> None:
    """The control of the test above."""
    found = look("status")
    assert (found["NoNewPrivs"], found["Seccomp"]) == ("0", "0")
    assert int(found["CapEff"], 16) or os.geteuid() != 0


def test_limits_are_the_kernels() -> None:
    found = look("limits_told")
    assert found == {
        "dumpable": 0,
        "core": [0, 0],
        "locked": [0, 0],
        "file": [limits.SCRATCH_BYTES] * 2,
        "descriptors": [limits.OPEN_FILES] * 2,
        "data": [1 << 40] * 2,
    }


def test_a_worker_and_who_forks_it_are_each_not_dumpable() -> None:
    assert look("dumpable") == 1  # control
    assert look("limits_told")["dumpable"] == 0
    assert look("zygote")["dumpable"] == 0


def test_it_is_killed_with_its_parent() -> None:
    assert look("end_signal") == SIGKILL


def test_the_filter_alone_refuses_shared_state(tmp_path: Path) -> None:
    """N6: what outlives a slice, or is seen by another process."""
    demand("seccomp")
    file = tmp_path / "library"
    file.write_bytes(bytes(1 << 16))
    found = look("refused_calls", "seccomp", SHOWN=str(file))
    assert found == dict.fromkeys(found, "EPERM")
    free: dict[str, Any] = look("refused_calls", SHOWN=str(file))
    limited = {"lock pages"}  # 0 bytes, by a limit of its own
    assert {name for name in found if free[name] != "done"} <= limited  # control


def test_a_native_join_ends_under_the_filter() -> None:
    """It waits at a futex that others could meet; it is told to look again."""
    demand("seccomp")
    assert look("join_a_thread", "seccomp") == [0, 0, [1]]
