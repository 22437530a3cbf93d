"""Servers over sockets: the right products, and a line with a name for everything else."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sealift.channel.transport.tcp import TcpListener
from sealift.crypto.hash import KeyedHasher
from sealift.crypto.keys import Label
from sealift.crypto.sign import SigningKey
from sealift.errors import (
    MalformedError,
    PeerError,
    PolicyError,
    RefusedError,
    SealiftError,
)
from sealift.events import Event
from sealift.ids import Digest
from sealift.numeric.kernels import PART
from sealift.numeric.residues import U32
from sealift.outsource.compute import ShareProducts
from sealift.outsource.connections import Connections, _as_masked
from sealift.outsource.exchange import MaskedShares
from sealift.outsource.masked import MaskedProducts
from sealift.outsource.messages import BEGIN_BYTES, Begin, Message
from sealift.outsource.multiplier import Multiplier
from sealift.outsource.plain import PlainProducts
from sealift.outsource.server import ServedJob
from sealift.outsource.terms import Backward, Direction, Exchange, Forward, Layer
from sealift.outsource.trace import Recorder, StepKind, tabulate
from tests.sim.quickkernels import quick_kernels
from tests.sim.servedshares import KERNELS, SharesWorld

BOTH: tuple[Direction, ...] = ("input", "weight")
LET_GO_S = 300.0  # how long a test waits for what happens a moment later
CONV = Layer(
    name="conv", batch=6, inputs=3, outputs=8, height=8, width=9, kernel=(3, 3),
    stride=(2, 1), padding=(1, 1), edge=True,
)  # fmt: skip
FC = Layer(name="fc", batch=6, inputs=8 * 4 * 9, outputs=300)
TRACE: tuple[Exchange, ...] = (
    Forward(CONV, ("weight",)), Forward(FC, BOTH), Backward(1, BOTH),
    Backward(0, ("weight",)),
)  # fmt: skip
TRAIN, EVALUATE = StepKind("train", 6), StepKind("evaluate", 6)
TRACES = tabulate({TRAIN: TRACE, EVALUATE: (Forward(CONV), Forward(FC))})


@pytest.fixture
def world() -> Iterator[SharesWorld]:
    with SharesWorld().serving() as made:
        yield made


def run_step(multiplier: Multiplier, kind: StepKind, number: int) -> list[np.ndarray]:
    rng = np.random.default_rng(number)
    found, layers = [], []
    multiplier.begin(kind, number, Recorder())
    for each in TRACES.of(kind):
        if isinstance(each, Forward):
            layers.append(each.layer)
            x, w = (
                rng.standard_normal(each.layer.shape(t)).astype(np.float32)
                for t in ("x", "w")
            )
            found.append(multiplier.forward(each, x, w))
        else:
            dy = rng.standard_normal(layers[each.call].shape("dy"))
            found += multiplier.backward(each, dy.astype(np.float32))
    multiplier.settle()
    return found


def test_steps_over_sockets_are_those_in_place(world: SharesWorld) -> None:
    plain = Multiplier(PlainProducts(), KERNELS, 1)
    with world.dial() as servers:
        servers.announce(TRACES)
        masked = Multiplier(MaskedProducts(servers, KERNELS), KERNELS, 1)
        for number, kind in enumerate((TRAIN, TRAIN, EVALUATE, TRAIN)):
            ours, theirs = (run_step(m, kind, number) for m in (masked, plain))
            for mine, right in zip(ours, theirs, strict=True):
                assert np.array_equal(mine, right)
        assert {each.body.begun for each in servers.signed.values()} == {3}
        assert {each.body.step for each in servers.signed.values()} == {3}


WIDE = Layer(name="wide", batch=1500, inputs=240, outputs=220)
LARGE_TRACE: tuple[Exchange, ...] = (Forward(WIDE, BOTH), Backward(0, BOTH))


def test_large_steps_over_sockets_are_those_in_place(
    world: SharesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tensors cross in several messages, and some images are multiplied before others."""
    monkeypatch.setattr("sealift.outsource.compute.AT_ONCE", 1 << 15)
    kind, kernels = StepKind("train", WIDE.batch), quick_kernels()
    rng = np.random.default_rng(1)
    x, w, dy = (
        rng.standard_normal(WIDE.shape(t)).astype(np.float32) for t in ("x", "w", "dy")
    )

    def step(multiplier: Multiplier, number: int) -> list[np.ndarray]:
        multiplier.begin(kind, number, Recorder())
        y = multiplier.forward(Forward(WIDE, BOTH), x, w)
        slopes = multiplier.backward(Backward(0, BOTH), dy)
        multiplier.settle()
        return [y, *slopes]

    plain = Multiplier(PlainProducts(), kernels, 1)
    with world.dial(answer_s=30.0) as servers:
        servers.announce(tabulate({kind: LARGE_TRACE}))
        masked = Multiplier(MaskedProducts(servers, kernels), kernels, 1)
        for number in range(3):
            pairs = zip(step(masked, number), step(plain, number), strict=True)
            assert all(np.array_equal(ours, right) for ours, right in pairs)


def test_a_part_leaves_once_it_is_masked() -> None:
    masking: list[Future[None]] = [Future(), Future()]
    shares = np.arange(PART + 5, dtype=np.uint32)
    sent = [MaskedShares(shares, shares, b"", masking)]
    found: list[bytes] = []

    def send() -> None:
        found.extend(bytes(each.bytes) for each in _as_masked(sent, [shares]))

    sender = threading.Thread(target=send)
    sender.start()
    time.sleep(0.05)
    assert not found
    shares += np.uint32(1)  # as masking does
    for each in masking:
        each.set_result(None)
    sender.join()
    assert b"".join(found) == shares.tobytes()
    assert [len(each) for each in found] == [4 * PART, 20]


def refusal(world: SharesWorld) -> str:
    with world.dial() as servers, pytest.raises(RefusedError) as refused:
        servers.announce(TRACES)
    assert refused.value.code == "server-refuses"
    return str(refused.value)


def test_a_server_whose_memory_is_too_small_refuses_before_any_operand() -> None:
    with SharesWorld(most_bytes=100_000).serving() as world:
        assert "P (cloud-a): " in refusal(world)
        assert "do not fit" in refusal(world)


def test_a_server_that_serves_says_so(world: SharesWorld) -> None:
    with world.dial() as first:
        first.announce(TRACES)
        assert "works on another job" in refusal(world)
    once_let_go(lambda: announce_again(world))


def announce_again(world: SharesWorld) -> None:
    with world.dial() as second:
        second.announce(TRACES)


def once_let_go(work: Callable[[], None]) -> None:
    """Do it as soon as the servers have heard of the last job's end: a moment later."""
    deadline_s = time.monotonic() + LET_GO_S
    while True:
        try:
            work()
        except RefusedError:
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        else:
            return


def test_a_server_taken_for_another_share_refuses(world: SharesWorld) -> None:
    p, m, z = world.places()
    swapped = [replace(p, share="M"), replace(m, share="P"), z]
    servers = Connections.dial(world.endpoint(), swapped, answer_s=5.0, one_host=True)
    with servers, pytest.raises(RefusedError, match=r"P \(cloud-b\)") as refused:
        servers.announce(TRACES)
    assert "this server computes with M" in str(refused.value)


def test_who_has_another_key_is_not_the_server(world: SharesWorld) -> None:
    world.identities["M"] = SigningKey.generate()
    with pytest.raises(RefusedError, match=r"M \(cloud-b\)") as refused:
        world.dial()
    assert refused.value.code == "identity-differs"


@pytest.mark.parametrize("place", [0, 1, 2])
def test_two_servers_on_one_host_are_refused(place: int) -> None:
    hosts = ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
    apart = SharesWorld()
    with apart.serving(hosts), apart.dial(one_host=False):
        pass
    hosts[place] = hosts[place - 1]
    together = SharesWorld()
    with together.serving(hosts):
        with pytest.raises(PolicyError, match="on one host") as refused:
            together.dial(one_host=False)
        with together.dial(one_host=True):
            pass
    assert refused.value.code == "servers-not-apart"


def test_a_server_that_is_not_there_is_named(world: SharesWorld) -> None:
    with closing(TcpListener()) as listener:
        world.addresses["Z"] = listener.address
    with pytest.raises(PeerError, match=r"Z \(cloud-c\)") as refused:
        world.dial()
    assert refused.value.code == "server-gone"


def test_a_server_that_leaves_in_a_step_is_named(world: SharesWorld) -> None:
    with world.dial() as servers:
        servers.announce(TRACES)
        masked = Multiplier(MaskedProducts(servers, KERNELS), KERNELS, 1)
        run_step(masked, TRAIN, 0)
        world.servers["M"].close()
        with pytest.raises(PeerError, match=r"M \(cloud-b\)") as refused:
            run_step(masked, TRAIN, 1)
    assert refused.value.code == "server-gone"


def test_a_server_that_is_slow_is_named(world: SharesWorld) -> None:
    released = threading.Event()
    world.servers["P"].products = SlowProducts(released)
    try:
        with world.dial(answer_s=0.3) as servers:
            servers.announce(TRACES)
            masked = Multiplier(MaskedProducts(servers, KERNELS), KERNELS, 1)
            with pytest.raises(PeerError, match=r"P \(cloud-a\)") as refused:
                run_step(masked, TRAIN, 0)
    finally:
        released.set()
    assert refused.value.code == "server-gone"


class SlowProducts(ShareProducts):
    """Computes once it is let go."""

    def __init__(self, released: threading.Event) -> None:
        super().__init__("cpu", KERNELS)
        self._released = released

    def make(self, *what: Any, **how: Any) -> Iterator[int]:
        self._released.wait(20)
        return super().make(*what, **how)


Fault = Callable[[U32], U32]


def no_share(product: U32) -> U32:
    product[3] = 2**32 - 1
    return product


def short(product: U32) -> U32:
    return product[1:]


def long(product: U32) -> U32:
    return np.append(product, np.uint32(0))


def test_a_refusal_is_one_quoted_piece_of_a_line(
    world: SharesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server's words cannot draw a line of their own."""
    lie = PolicyError("no\n  verified: everything \u202e" + "x" * 400)
    monkeypatch.setattr(
        "sealift.outsource.server.ServedJob._check", lambda *_: _raise(lie)
    )
    line = refusal(world)
    assert "P (cloud-a): " in line
    assert '"no verified: everything' in line
    assert "\n  verified" not in line
    assert "\u202e" not in line
    assert "x" * 400 not in line


def _raise(error: SealiftError) -> None:
    raise error


@pytest.mark.parametrize(
    ("fault", "code", "error"),
    [
        (no_share, "bad-share", MalformedError),
        (short, "authentication", SealiftError),
        (long, "bad-share", MalformedError),
    ],
)
def test_what_is_no_answer_names_the_server(
    world: SharesWorld,
    monkeypatch: pytest.MonkeyPatch,
    fault: Fault,
    code: str,
    error: type[SealiftError],
) -> None:
    send = ServedJob._send

    def faulty(self: ServedJob, products: Sequence[U32]) -> None:
        if self._server.share == "Z":
            products = [fault(each) for each in products]
        send(self, products)

    with monkeypatch.context() as patched, world.dial() as servers:
        patched.setattr(ServedJob, "_send", faulty)
        servers.announce(TRACES)
        masked = Multiplier(MaskedProducts(servers, KERNELS), KERNELS, 1)
        with pytest.raises(error, match=r"Z \(cloud-c\)") as refused:
            run_step(masked, TRAIN, 0)
    assert refused.value.code == code
    once_let_go(lambda: test_steps_over_sockets_are_those_in_place(world))


def test_a_signature_of_other_answers_names_the_server(world: SharesWorld) -> None:
    with world.dial() as servers:
        servers.announce(TRACES)
        masked = Multiplier(MaskedProducts(servers, KERNELS), KERNELS, 1)
        run_step(masked, TRAIN, 0)
        connection = servers._servers[1]
        connection._begun += 1  # as if a step's signature were used for another
        with pytest.raises(SealiftError, match=r"M \(cloud-b\)") as refused:
            run_step(masked, TRAIN, 1)
    assert refused.value.exit_code == 5


def test_a_digest_of_answers_is_keyed_by_the_session(world: SharesWorld) -> None:
    """Whoever reads it cannot try which answers it is of."""
    with world.dial() as servers:
        servers.announce(TRACES)
        connection = servers._servers[1]
        taken: list[bytes] = []
        receive = connection.receive

        def noted(messages: Iterable[Message]) -> Iterator[Message]:
            for message in receive(messages):
                taken.append(bytes(message.bytes))
                yield message

        connection.receive = noted  # type: ignore[method-assign]
        masked = Multiplier(MaskedProducts(servers, KERNELS), KERNELS, 1)
        run_step(masked, EVALUATE, 0)
        key = connection._session.export(Label.SHARE_ANSWERS, bytes(8))
        hasher = KeyedHasher(key)
        hasher.update(b"".join(taken))
        assert servers.signed["M"].body.answers == Digest(hasher.digest())


def _say(world: SharesWorld, *messages: bytes) -> Event:
    """Announce, say this to P, and what P makes of it."""
    with world.dial() as servers:
        servers.announce(TRACES)
        for message in messages:
            servers._servers[0].send([Message(memoryview(message), ())])
        deadline_s = time.monotonic() + LET_GO_S
        while time.monotonic() < deadline_s:
            refused = [e for e in world.events["P"] if e.kind == "shares.refused"]
            if refused:
                return refused[0]
            time.sleep(0.02)
    return pytest.fail("P took it")


BEGIN = Begin(1, 0).encode()
X_BYTES, W_BYTES = (4 * int(np.prod(CONV.shape(t))) for t in ("x", "w"))


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ((b"x" * len(BEGIN),), "bad-message"),
        ((Begin(7, 0).encode(),), "bad-message"),
        ((BEGIN, b"\xff" * (X_BYTES + W_BYTES)), "bad-share"),
        ((BEGIN, bytes(X_BYTES + W_BYTES - 4)), "authentication"),
        ((BEGIN, bytes(X_BYTES + W_BYTES + 4)), "bad-record-length"),
        ((BEGIN, BEGIN), "authentication"),
    ],
)
def test_a_server_refuses_what_is_out_of_turn_and_serves_on(
    world: SharesWorld, messages: tuple[bytes, ...], reason: str
) -> None:
    assert _say(world, *messages).fields["reason"] == reason
    test_steps_over_sockets_are_those_in_place(world)


def test_strangers_keep_nobody_out(world: SharesWorld) -> None:
    with ExitStack() as strangers:
        for _ in range(4):
            strangers.enter_context(socket.create_connection(world.addresses["P"]))
        test_steps_over_sockets_are_those_in_place(world)


def test_p_and_m_see_no_seed_and_z_no_share(world: SharesWorld) -> None:
    """Lengths of all that each gets: seeds are 32 bytes a tensor, for Z alone (M9)."""
    got: dict[str, list[int]] = {}
    with world.dial() as servers:
        servers.announce(TRACES)
        for connection in servers._servers:
            sent = got.setdefault(connection.place.share, [])
            connection._pipe.send = _noting(connection._pipe.send, sent)  # type: ignore
        masked = Multiplier(MaskedProducts(servers, KERNELS), KERNELS, 1)
        run_step(masked, TRAIN, 0)
    assert got["Z"] == [BEGIN_BYTES, 6 * 32]
    assert got["P"] == got["M"]
    assert sum(got["P"]) == BEGIN_BYTES + 4 * sum(
        int(np.prod(layer.shape(t))) for layer in (CONV, FC) for t in ("x", "w", "dy")
    )


def _noting(send: Any, lengths: list[int]) -> Any:
    def sends(message: Any) -> None:
        lengths.append(len(message))
        send(message)

    return sends
