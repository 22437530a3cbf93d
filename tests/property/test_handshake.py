"""Whatever is done to a handshake, nobody ends up with keys over different transcripts."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from sealift.crypto.keys import TOKEN
from sealift.errors import SealiftError
from sealift.session.endpoint import Established
from tests.sim.attested import Cast
from tests.sim.examples import examples

CAST = Cast()
MESSAGES = st.sampled_from(["hello", "reply", "answer", "done"])


@dataclass
class Outcome:
    """Who got how far."""

    here: Established | None = None
    there: Established | None = None
    refused: bool = False


def run(change: dict[str, object]) -> Outcome:
    """A handshake whose messages pass through ``change`` (a function per name)."""
    outcome = Outcome()
    initiator, responder = CAST.initiator(), CAST.responder()

    def line(name: str, message: bytes) -> bytes:
        return change[name](message) if name in change else message  # type: ignore[operator]

    try:
        reply = responder.reply(line("hello", initiator.hello()))
        answer = initiator.answer(line("reply", reply))
        done, outcome.there = responder.finish(line("answer", answer))
        outcome.here = initiator.finish(line("done", done))
    except SealiftError:
        outcome.refused = True
    return outcome


def flipped(message: bytes, position: float, mask: int) -> bytes:
    changed = bytearray(message)
    changed[int(position * (len(message) - 1))] ^= mask
    return bytes(changed)


@examples(150)
@given(MESSAGES, st.floats(0, 1), st.integers(1, 255))
def test_any_changed_byte_is_refused(name: str, position: float, mask: int) -> None:
    outcome = run({name: lambda message: flipped(message, position, mask)})
    assert outcome.refused
    assert outcome.here is None
    # The responder has keys before its last message arrives; it has them alone.
    assert (outcome.there is not None) is (name == "done")


@examples(40)
@given(MESSAGES, st.floats(0, 1, exclude_max=True))
def test_any_cut_is_refused(name: str, length: float) -> None:
    outcome = run({name: lambda message: message[: int(length * len(message))]})
    assert outcome.refused
    assert outcome.here is None


@examples(40)
@given(MESSAGES, st.binary(max_size=200))
def test_any_bytes_are_an_error_of_ours(name: str, message: bytes) -> None:
    assert run({name: lambda _: message}).refused


@examples(20)
@given(MESSAGES)
def test_messages_of_another_handshake_are_refused(name: str) -> None:
    recorded: dict[str, bytes] = {}

    def record(kind: str) -> object:
        return lambda message: recorded.setdefault(kind, message)

    run({kind: record(kind) for kind in ("hello", "reply", "answer", "done")})
    outcome = run({name: lambda _: recorded[name]})
    assert outcome.refused
    assert outcome.here is None


def test_control_unharmed_handshakes_agree() -> None:
    outcome = run({})
    assert outcome.here is not None
    assert outcome.there is not None
    sent = outcome.here.send_key().reveal(TOKEN)
    assert sent == outcome.there.receive_key().reveal(TOKEN)
