"""States in memory files: read in pieces, mapped by nobody, overwritten when nobody has them."""

from __future__ import annotations

import fcntl
import mmap
import os

import pytest

from sealift.errors import UnavailableError
from sealift.train.loop.held import PIECE_BYTES, Chain, Held, MemoryFile, pieces_of
from tests.sim.descriptors import descriptors

RAW = b"".join(n.to_bytes(3, "big") for n in range(700_001))


def test_what_is_held_reads_as_it_was() -> None:
    held = Held.of(RAW)
    assert held == RAW
    assert held != RAW[:-1] + b"?"
    assert held != RAW[:-1]
    assert b"".join(held.pieces()) == RAW
    assert max(map(len, held.pieces())) == PIECE_BYTES
    assert held.read(len(RAW) - 3, 10) == RAW[-3:]
    assert held.part(5, 100).part(10, 20) == RAW[15:35]
    with pytest.raises(ValueError, match="outside"):
        held.part(len(RAW), 1)
    with pytest.raises(ValueError, match="outside"):
        held.write(len(RAW) - 1, b"ab")


def test_a_chain_reads_across_its_parts() -> None:
    held = Held.of(RAW)
    chain = Chain(
        b"", RAW[:10], held.part(10, PIECE_BYTES), b"", RAW[PIECE_BYTES + 10 :]
    )
    assert chain == RAW
    assert len(chain) == len(RAW)
    assert chain.read(5, 100) == RAW[5:105]
    assert b"".join(pieces_of(chain)) == RAW
    part = chain.part(100, 1000)
    assert isinstance(part, Held)  # by reference
    assert part == RAW[100:1100]
    assert chain.part(5, 100) == RAW[5:105]  # of several: a copy


def test_what_nobody_has_is_overwritten_and_given_back() -> None:
    held = Held.of(RAW)
    part = held.part(4096, 10)
    with held.open_to_read() as spy:
        del held
        assert os.pread(spy.fileno(), len(RAW), 0) == RAW  # a part is still there
        del part
        assert not any(os.pread(spy.fileno(), len(RAW), 0))
        assert os.fstat(spy.fileno()).st_blocks == 0


def test_what_is_handed_over_of_a_state_can_be_read_alone() -> None:
    held = Held.of(RAW)
    with held.open_to_read() as shown:
        with pytest.raises(PermissionError):
            mmap.mmap(shown.fileno(), 4096)
        with mmap.mmap(shown.fileno(), 4096, access=mmap.ACCESS_COPY) as copied:
            copied[:3] = b"own"  # as a worker does with its copy
        with mmap.mmap(shown.fileno(), 4096, access=mmap.ACCESS_READ) as pages:
            assert pages[:3] == RAW[:3]


def test_a_state_that_lies_beside_another_is_copied_for_who_may_read_no_other() -> None:
    memory = MemoryFile(2 * PIECE_BYTES + 10)
    first, second = Held(memory, 0, PIECE_BYTES), Held(memory, PIECE_BYTES, 1 << 20)
    second.write(0, RAW[: 1 << 20])
    apart = second.by_itself()
    assert apart == second
    assert apart.start == 0
    with apart.open_to_read() as shown:
        assert os.fstat(shown.fileno()).st_size == len(second)
    del first
    assert second.by_itself() is second  # no copy, where there is nothing beside it


def test_the_last_stretch_of_a_file_closes_it() -> None:
    before = descriptors()
    memory = MemoryFile(2 * 4096)
    first, second = Held(memory, 0, 4096), Held(memory, 4096, 4096)
    assert len(descriptors() - before) == 2
    del first
    assert len(descriptors() - before) == 2
    del second
    assert descriptors() == before


def test_what_is_done_to_a_descriptor_changes_nothing() -> None:
    """Who was handed it shares position and flags of that open file, and not of ours."""
    memory = MemoryFile(8)
    spy = os.dup(memory.descriptor)
    try:
        fcntl.fcntl(spy, fcntl.F_SETFL, os.O_APPEND)
        memory.write(0, b"rows")
        assert memory.read(0, 8) == b"rows" + bytes(4)
        memory.clear(0, 8)
        assert memory.read(0, 8) == bytes(8)
    finally:
        os.close(spy)
        memory.use()
        memory.end_use(0, 8)


def test_more_than_is_free_is_refused_before_anything_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sealift.train.loop.held.free_memory_bytes", lambda: 999)
    Held.room(999)  # control
    with pytest.raises(UnavailableError) as caught:
        Held.room(1000)
    assert caught.value.code == "no-memory"
    assert "1,000" in caught.value.what
    assert "999" in str(caught.value.why)
