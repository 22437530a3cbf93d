"""Messages of any sizes arrive as they were sent, whatever the records and the order."""

from __future__ import annotations

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from tests.sim.attested import both
from tests.sim.examples import examples
from tests.sim.memfdpair import memfd_pair
from tests.sim.pipes import CAST, pipes

SESSIONS = CAST.sessions()
SIZES = st.lists(st.integers(0, 2000), max_size=6)


def content(seed: int, size: int) -> bytes:
    return hashlib.shake_128(b"%d %d" % (seed, size)).digest(size)


@given(there=SIZES, back=SIZES, slot_bytes=st.integers(128, 700))
@examples(60)
def test_any_sizes_cross_both_ways_at_once(there, back, slot_bytes):
    ends = pipes(memfd_pair(slot_bytes=slot_bytes, num_slots=2), SESSIONS)

    def end(number, out, into):
        pipe = ends[number]
        found = [bytearray(size) for size in into]
        with pipe:
            both(
                lambda: [pipe.send(content(number, size)) for size in out],
                lambda: [pipe.receive_into(each) for each in found],
            )
        return found

    first, second = both(lambda: end(0, there, back), lambda: end(1, back, there))
    assert first == [content(1, size) for size in back]
    assert second == [content(0, size) for size in there]
