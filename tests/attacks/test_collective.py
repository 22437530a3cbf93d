"""Somebody on the line between ranks: nothing is summed that its rank did not send.

Three ranks; the line from rank 1 to rank 0 has a tap. Whatever is done there, every rank ends
with an error and no sum is given out; unharmed, and harmed below the checks (the control), the sum
is there.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from sealift.collective.group import Choices, SealedGroup
from sealift.collective.peer import Wire
from sealift.errors import MalformedError, PeerError, RefusedError, SealiftError
from sealift.session.pipe import Pipe
from tests.sim.pipes import Change, Tapped, hang_up, line, pipes
from tests.sim.wires import simulated_wires

WORLD = 3
ELEMENTS = 600
TIMEOUT_S = 3.0


def flip(at: int) -> Change:
    def change(number: int, frame: bytes) -> list[bytes]:
        return (
            [frame[:-20] + bytes([frame[-20] ^ 1]) + frame[-19:]]
            if number == at
            else [frame]
        )

    return change


def drop(at: int) -> Change:
    return lambda number, frame: [] if number == at else [frame]


def twice(at: int) -> Change:
    return lambda number, frame: [frame] * (2 if number == at else 1)


def swap(at: int) -> Change:
    held: list[bytes] = []

    def change(number: int, frame: bytes) -> list[bytes]:
        if number == at:
            held.append(frame)
            return []
        return [frame, held.pop()] if held else [frame]

    return change


def replay(of: int, at: int) -> Change:
    seen: dict[int, bytes] = {}

    def change(number: int, frame: bytes) -> list[bytes]:
        seen[number] = frame
        return [seen[of]] if number == at else [frame]

    return change


def wires_with(change: Change | None) -> tuple[list[dict[int, Wire]], Tapped]:
    """Every rank's pipes; what rank 1 sends rank 0 passes ``change``."""
    wires: list[dict[int, Wire]] = [{} for _ in range(WORLD)]
    tap: Tapped | None = None
    for one, two in ((0, 1), (0, 2), (1, 2)):
        tapped, plain = line(change if (one, two) == (0, 1) else None)
        tap = tap or tapped
        later, earlier = pipes((tapped, plain), timeout_s=TIMEOUT_S)
        wires[two][one], wires[one][two] = later, earlier
    assert tap is not None
    return wires, tap


def train(wires: list[dict[int, Any]], steps: int = 3) -> list[Any]:
    """Each rank's sums, or its error and the sums until then."""

    def one(rank: int) -> tuple[list[float], SealiftError | None]:
        found: list[float] = []
        group = SealedGroup(rank, wires[rank], Choices(one_phase_bytes=0))
        try:
            with group:
                for step in range(steps):
                    tensor = np.full(ELEMENTS, rank + 1 + 10.0 * step, np.float32)
                    group.all_reduce(tensor)
                    found.append(float(tensor.mean(dtype=np.float64)))
        except SealiftError as error:
            return found, error
        return found, None

    with ThreadPoolExecutor(WORLD) as pool:
        return list(pool.map(one, range(WORLD)))


SUMS = [6.0 + 30.0 * step for step in range(3)]


@pytest.fixture(autouse=True)
def ended() -> Any:
    yield
    hang_up()


def test_unharmed_the_sums_are_there() -> None:
    wires, tap = wires_with(None)
    assert train(wires) == [(SUMS, None)] * WORLD
    assert len(tap.seen) > 12


@pytest.mark.parametrize(
    "change",
    [flip(3), flip(9), drop(2), drop(8), twice(4), swap(3), replay(2, 8), replay(3, 9)],
    ids=[
        "flip",
        "flip-later",
        "drop",
        "drop-later",
        "twice",
        "swap",
        "replay",
        "replay-data",
    ],
)
def test_whatever_is_done_to_the_line_nobody_gets_a_wrong_sum(change: Change) -> None:
    wires, _ = wires_with(change)
    found = train(wires)
    for sums, error in found:
        assert sums == SUMS[: len(sums)]
        assert isinstance(error, RefusedError | PeerError | MalformedError)


def test_what_a_rank_sent_is_not_its_own_from_another() -> None:
    """Reflection: rank 1 gets back what it sent, in place of rank 0's."""
    wires, tap = wires_with(None)
    pipe = wires[1][0]
    assert isinstance(pipe, Pipe)
    pipe._carrier.borrow = lambda timeout_s: memoryview(tap.seen[-1])  # type: ignore[method-assign]
    for sums, error in train(wires):
        assert sums == []
        assert error is not None


def test_control_a_wire_without_checks_gives_a_wrong_sum() -> None:
    """The same tampering where nothing is sealed: this is what the pipes prevent."""
    wires = simulated_wires(WORLD)
    send: Callable[[Any], None] = wires[1][0].send

    def tampered(message: Any) -> None:
        raw = np.frombuffer(bytes(message), np.uint8).copy()
        if len(raw) == ELEMENTS * 4 // WORLD:
            raw[3] ^= 0x40  # of an exponent
        send(raw.tobytes())

    wires[1][0].send = tampered  # type: ignore[method-assign]
    for sums, error in train(wires):
        assert error is None
        assert sums != SUMS


def test_a_rank_that_lies_about_its_own_contribution_is_not_caught() -> None:
    """Said in spec/collective.md section 4: nothing here knows what a gradient is."""
    wires, _ = wires_with(None)

    def one(rank: int) -> float:
        with SealedGroup(rank, wires[rank]) as group:
            tensor = np.full(3, 1e6 if rank == 2 else 1.0, np.float32)
            group.all_reduce(tensor)
            return float(tensor[0])

    with ThreadPoolExecutor(WORLD) as pool:
        assert set(pool.map(one, range(WORLD))) == {1_000_002.0}
