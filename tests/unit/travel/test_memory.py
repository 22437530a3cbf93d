"""Pools and their scrub: private, overwritten, read back."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from sealift.cli.meeting import guest
from sealift.errors import IntegrityError, UnavailableError
from sealift.travel.visit.memory import (
    ALLOCATOR_ENVIRONMENT,
    CHUNK_BYTES,
    CPUPool,
    asks_to_overwrite,
    count_nonzero,
    overwrite_live_pools,
    scrub,
)

Make = Callable[[int, int], CPUPool]


@pytest.fixture
def make() -> Iterator[Make]:
    """Pools that are closed at the end."""
    with ExitStack() as stack:
        yield lambda *sizes: stack.enter_context(closing(CPUPool(*sizes)))


def filled(pool: CPUPool) -> CPUPool:
    for region in pool.regions().values():
        region[:] = b"\x5a" * len(region)
    return pool


def test_a_pool_has_the_sizes_asked_for_and_its_own_handle(make: Make) -> None:
    pool, other = make(5000, 96), make(1, 64)
    assert (len(pool.buffer), len(pool.quarantine)) == (5000, 96)
    assert pool.handle != other.handle
    assert not any(pool.buffer)


def test_scrub_covers_every_region(make: Make) -> None:
    pool = filled(make(5000, 96))
    report = scrub(pool.regions())
    assert [(part.name, part.size_bytes) for part in report.regions] == [
        ("buffer", 5000),
        ("quarantine", 96),
    ]
    assert report.scrubbed_bytes == 5096
    assert report.verified
    assert not report.freed_memory_overwritten  # as this process was started
    assert not any(pool.buffer)
    assert not any(pool.quarantine)


def test_one_byte_that_stays_is_seen(make: Make) -> None:
    def all_but_the_last(region: memoryview) -> None:
        region[:-1] = bytes(len(region) - 1)

    pool = filled(make(2 * CHUNK_BYTES + 5, 64))
    with pytest.raises(IntegrityError, match="2 bytes") as refusal:
        scrub(pool.regions(), write=all_but_the_last)
    assert refusal.value.code == "scrub"
    assert count_nonzero(pool.buffer) == 1


def test_the_allocators_settings_count_as_a_whole() -> None:
    assert asks_to_overwrite(dict(ALLOCATOR_ENVIRONMENT))
    for name in ALLOCATOR_ENVIRONMENT:
        others = {k: v for k, v in ALLOCATOR_ENVIRONMENT.items() if k != name}
        assert not asks_to_overwrite(others)
        assert not asks_to_overwrite(others | {name: "0"})


LOOK = """
import os, sys
from sealift.travel.visit.memory import freed_is_overwritten
os.environ.update(eval(sys.argv[1]))
print(freed_is_overwritten())
"""
WITHOUT_PERTURB = {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"}
WITH_A_CACHE = {"GLIBC_TUNABLES": "glibc.malloc.perturb=165"}


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("given", "later", "expected"),
    [
        ({}, {}, "True"),
        ({"PYTHONMALLOC": "pymalloc"}, {}, "False"),
        (WITHOUT_PERTURB, {}, "False"),
        (WITH_A_CACHE, {}, "False"),
        ({"MKL_DISABLE_FAST_MM": "0"}, {}, "False"),
        # What is said afterwards changes nothing: the allocators have read it.
        (WITHOUT_PERTURB, ALLOCATOR_ENVIRONMENT, "False"),
        ({}, WITHOUT_PERTURB, "True"),
    ],
)
def test_what_a_process_does_with_freed_memory_is_tried(
    given: dict[str, str], later: dict[str, str], expected: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOOK, repr(dict(later))],
        env=dict(os.environ) | ALLOCATOR_ENVIRONMENT | given,
        capture_output=True,
        check=True,
        text=True,
    )
    assert done.stdout.strip() == expected


def test_a_closed_pool_is_gone_even_if_somebody_points_there(make: Make) -> None:
    pool = filled(make(4096, 64))
    pointer = memoryview(pool.buffer)
    pool.close()
    assert not any(pointer)


def test_every_live_pool_is_overwritten_at_the_end(make: Make) -> None:
    pools = [filled(make(100, 64)) for _ in range(2)]
    closed = make(100, 64)
    closed.close()
    overwrite_live_pools()
    assert not any(any(pool.buffer) or any(pool.quarantine) for pool in pools)


def test_a_pool_stays_out_of_children_and_core_dumps(make: Make) -> None:
    pool = make(3 << 20, 64)
    address = ctypes.addressof(ctypes.c_char.from_buffer(pool.buffer))
    assert {"dd", "dc"} <= _flags_at(address)  # not dumped, not copied by fork


def _flags_at(address: int) -> set[str]:
    """The kernel's flags of the mapping at an address."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first = line.split()[0]
        if not first.endswith(":"):
            start, end = (int(part, 16) for part in first.split("-"))
            inside = start <= address < end
        elif inside and first == "VmFlags:":
            return set(line.split()[1:])
    return set()


def test_no_memory_is_one_clear_error() -> None:
    with pytest.raises(UnavailableError) as refusal:
        CPUPool(1 << 60, 64)
    assert refusal.value.code == "no-memory"


def test_the_command_of_a_meeting_does_not_have_to_start_again_to_overwrite(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ALLOCATOR_ENVIRONMENT:
        monkeypatch.setenv(name, "")
    monkeypatch.setattr(os, "execv", lambda *words: sys.exit())
    with pytest.raises(SystemExit):
        guest._become(["join"])
    assert asks_to_overwrite(os.environ)
