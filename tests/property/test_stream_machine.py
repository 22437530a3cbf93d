"""Whatever happens on the way: an exact prefix of the plaintext, or an error.

A line takes frames from a sealer; the machine flips, drops, replays, swaps, duplicates,
truncates, forges and splices them before the opener sees them. The model is a list of
plaintexts; the opener may only ever have given out its first ones.
"""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from sealift.channel.record.layout import PREFIX_BYTES, FramePrefix
from sealift.channel.record.opener import StreamOpener
from sealift.channel.record.sealer import StreamSealer
from sealift.crypto.aead import Suite
from sealift.crypto.keys import SecretKey
from sealift.errors import (
    AuthenticationError,
    MalformedError,
    SealiftError,
    StaleError,
    UsageError,
)
from tests.sim.examples import examples

KEY = SecretKey.from_bytes(b"k" * 32)
INDEX = st.integers(min_value=0, max_value=10_000)


def has_frames(machine: StreamMachine) -> bool:
    return bool(machine.line)


class StreamMachine(RuleBasedStateMachine):
    """A stream of messages over a hostile line."""

    opener_class = StreamOpener

    @initialize(suite=st.sampled_from(list(Suite)))
    def start(self, suite):
        self.sealer = StreamSealer(KEY, total_bytes=None, record_bytes=64, suite=suite)
        other = StreamSealer(KEY, total_bytes=None, record_bytes=64, suite=suite)
        self.opener = self.opener_class(KEY, self.sealer.header_bytes)
        self.foreign = [other.seal_frame(bytes([n])) for n in range(3)]
        self.sent: list[bytes] = []
        self.opened: list[bytes] = []
        self.line: list[bytes] = []
        self.seen: list[bytes] = []
        self.ended = self.failed = False

    # ------------------------------------------------------------ the sender

    @precondition(lambda self: not self.ended)
    @rule(message=st.binary(max_size=64), final=st.booleans())
    def seal(self, message, final):
        self.ended = final
        self.line.append(self.sealer.seal_frame(message, final=final))
        self.sent.append(message)

    @precondition(lambda self: not self.ended)
    @rule(message=st.binary(max_size=64))
    def seal_ahead_and_discard(self, message):
        frame = bytearray(self.sealer.seal_frame(message))
        self.sealer.discard(frame)

    # -------------------------------------------------------------- the line

    @precondition(has_frames)
    @rule(at=INDEX, bit=INDEX)
    def flip(self, at, bit):
        at %= len(self.line)
        frame = bytearray(self.line[at])
        position = bit % (8 * len(frame)) if frame else 0
        if frame:
            frame[position // 8] ^= 1 << position % 8
        self.line[at] = bytes(frame)

    @precondition(has_frames)
    @rule(at=INDEX)
    def drop(self, at):
        del self.line[at % len(self.line)]

    @precondition(has_frames)
    @rule(at=INDEX)
    def duplicate(self, at):
        at %= len(self.line)
        self.line.insert(at, self.line[at])

    @precondition(has_frames)
    @rule(at=INDEX, to=INDEX)
    def reorder(self, at, to):
        frame = self.line.pop(at % len(self.line))
        self.line.insert(to % (len(self.line) + 1), frame)

    @precondition(has_frames)
    @rule(at=INDEX, keep=INDEX)
    def truncate(self, at, keep):
        at %= len(self.line)
        self.line[at] = self.line[at][: keep % (len(self.line[at]) + 1)]

    @precondition(lambda self: bool(self.seen))
    @rule(which=INDEX, to=INDEX)
    def replay(self, which, to):
        frame = self.seen[which % len(self.seen)]
        self.line.insert(to % (len(self.line) + 1), frame)

    @precondition(has_frames)
    @rule(at=INDEX, sequence=INDEX, final=st.booleans())
    def forge_the_prefix(self, at, sequence, final):
        at %= len(self.line)
        record = self.line[at][PREFIX_BYTES:]
        prefix = FramePrefix(len(record), sequence, final).encode()
        self.line[at] = prefix + record

    @rule(which=st.integers(0, 2), to=INDEX)
    def splice(self, which, to):
        self.line.insert(to % (len(self.line) + 1), self.foreign[which])

    # ---------------------------------------------------------- the receiver

    @precondition(has_frames)
    @rule()
    def receive(self):
        frame = self.line.pop(0)
        self.seen.append(frame)
        try:
            self.opened.append(self.opener.open_frame(frame))
        except (AuthenticationError, StaleError, MalformedError):
            assert not self.failed, "only the first error has a reason"
            self.failed = True
        except UsageError as error:
            if not self.failed or error.code != "dead-stream":
                raise

    @rule()
    def receive_all(self):
        while self.line:
            self.receive()

    # ------------------------------------------------------------ the promise

    @invariant()
    def what_was_opened_is_an_exact_prefix(self):
        assert self.opened == self.sent[: len(self.opened)]

    @invariant()
    def the_end_is_the_end(self):
        if self.opener.finished:
            assert self.ended
            assert self.opened == self.sent

    def teardown(self):
        """A whole stream verifies its trailer; any other does not."""
        if not hasattr(self, "opener") or not self.ended or self.failed:
            return
        trailer = self.sealer.trailer()
        if self.opened == self.sent:
            self.opener.finish(trailer)
            return
        try:
            self.opener.finish(trailer)
        except SealiftError:
            return
        raise AssertionError("a stream that is not whole was finished")


class ForgetfulOpener(StreamOpener):
    """The mutant: goes on after an error, and takes gaps in the index for legal."""

    def open_frame(self, frame, *, private=False):
        self._life.dead = False
        if len(frame) >= PREFIX_BYTES:
            sequence = int.from_bytes(frame[8:PREFIX_BYTES], "big")
            self._index = max(self._index, min(sequence, 10**6))
        return super().open_frame(frame, private=private)


class MutantMachine(StreamMachine):
    opener_class = ForgetfulOpener


TestStreamMachine = StreamMachine.TestCase
TestStreamMachine.settings = examples(150, stateful_step_count=40)


def test_the_machine_catches_an_opener_with_one_counter():
    machine = MutantMachine()
    machine.start(Suite.AES_256_GCM)
    for n in range(3):
        machine.seal(bytes([n]), final=False)
    machine.drop(1)
    machine.receive_all()
    try:
        machine.what_was_opened_is_an_exact_prefix()
    except AssertionError:
        return
    raise AssertionError("the dropped record went unnoticed")
