"""`sealift.feed`: what both ends of a fed device do, in one process."""

from __future__ import annotations

import socket
import stat
from pathlib import Path

import numpy as np
import pytest
import torch

from sealift.channel.device.host import HostDevice
from sealift.channel.transport.unixsocket import PathListener
from sealift.errors import PeerError, UnavailableError, UsageError
from tests.sim.device_engines import ENGINES, ON_A_GPU
from tests.sim.linked import FORM, LinkedParties, Other, linked


def batch(number: int) -> dict[str, np.ndarray]:
    x = np.arange(12, dtype=np.float32).reshape(4, 3) + number
    return {"x": x, "y": np.full(4, number, dtype=np.int64)}


@pytest.fixture
def parties(tmp_path: Path) -> LinkedParties:
    return LinkedParties(tmp_path)


def test_batches_arrive_whole_and_in_order(parties: LinkedParties) -> None:
    with linked(parties) as (sender, receiver):
        assert sender.seen.level == "development"
        assert receiver.owner == "north"
        assert "host" in receiver.opened_by
        got = Other(lambda: list(receiver))
        with sender:
            sender.send(batch(0))
            assert sender.send_ahead(batch(n) for n in range(1, 20)) == 19
            tensors = {name: torch.from_numpy(a) for name, a in batch(20).items()}
            sender.send(tensors)
            assert sender.num_sent == 21
        found = got.join()
        assert receiver.num_received == len(found) == 21
        for number, each in enumerate(found):  # also the first: nothing is reused
            for name, array in batch(number).items():
                assert each[name].dtype == getattr(torch, FORM[name][0])
                assert np.array_equal(each[name].numpy(), array)
        assert receiver.receive() is None
    assert not parties.path.exists()


def test_into_arrays_and_tensors_that_are_there(parties: LinkedParties) -> None:
    out = {"x": torch.zeros(4, 3), "y": np.zeros(4, dtype=np.int64)}
    with linked(parties) as (sender, receiver):
        for wrong in (
            {"x": torch.zeros(4, 3)},
            {**out, "y": np.zeros(5, dtype=np.int64)},
            {**out, "x": torch.zeros(4, 3, dtype=torch.float64)},
            {**out, "y": np.zeros(8, dtype=np.int64)[::2]},
        ):
            with pytest.raises(UsageError) as caught:
                receiver.receive_into(wrong)
            assert caught.value.code == "batch-differs"
        sending = Other(lambda: sender.__exit__(sender.send(batch(7)), None, None))
        assert receiver.receive_into(out)
        assert np.array_equal(out["x"].numpy(), batch(7)["x"])
        assert np.array_equal(out["y"], batch(7)["y"])
        assert not receiver.receive_into(out)
        sending.join()


@pytest.mark.parametrize(
    "change",
    [
        {"x": np.zeros((4, 3))},
        {"x": np.zeros((4, 2), dtype=np.float32)},
        {"y": torch.zeros(5, dtype=torch.int64)},
        {"z": np.zeros(1)},
    ],
)
def test_another_batch_is_one_line_and_the_link_goes_on(
    parties: LinkedParties, change: dict[str, object]
) -> None:
    with linked(parties) as (sender, receiver):
        with pytest.raises(UsageError) as caught:
            sender.send({**batch(0), **change})
        assert caught.value.code == "batch-differs"
        assert next(iter(change)) in str(caught.value)
        got = Other(receiver.receive)
        with pytest.raises(UsageError):
            sender.send_ahead([batch(1), {**batch(2), **change}])
        assert np.array_equal(got.join()["x"].numpy(), batch(1)["x"])
        got = Other(receiver.receive)
        sender.send(batch(3))
        assert np.array_equal(got.join()["x"].numpy(), batch(3)["x"])


@pytest.mark.parametrize(
    ("form", "code"),
    [
        ({}, "bad-batch-form"),
        ({"x": "float32"}, "bad-batch-form"),
        ({"x": ("float33", (1,))}, "bad-batch-form"),
        ({"x": ("float32", (0,))}, "bad-batch-form"),
        ({"x": ("float32", (1.5,))}, "bad-batch-form"),
        ({"x y": ("float32", (1,))}, "bad-batch-form"),
        ({"x": ("float32", (1,) * 9)}, "bad-batch-form"),
        ({"x": ("float32", (1 << 29,))}, "batch-too-large"),
    ],
)
def test_odd_forms_are_refused_before_anything(
    parties: LinkedParties, form: object, code: str
) -> None:
    for end in (parties.offer, parties.accept_link):
        with pytest.raises(UsageError) as caught:
            end(form, wait_s=0)
        assert caught.value.code == code


def test_what_feeds_fails_as_itself(parties: LinkedParties) -> None:
    """Its errors are not taken for the device's; what was before it was sent."""

    def source():
        yield batch(1)
        raise PeerError("the store is away", code="store-away")

    with linked(parties) as (sender, receiver):
        got = Other(receiver.receive)
        with pytest.raises(PeerError, match="store is away"):
            sender.send_ahead(source())
        assert got.join()["y"][0] == 1
        assert sender.num_sent == 1


def test_an_owner_that_leaves_without_a_word_is_told_apart(
    parties: LinkedParties,
) -> None:
    with linked(parties) as (sender, receiver):
        got = Other(lambda: list(receiver))
        sender.send(batch(0))
        sender.__exit__(KeyError)  # its own failure is no last word
        with pytest.raises(PeerError, match="1 batches") as caught:
            got.join()
        assert caught.value.code == "feed-truncated"


def test_a_device_that_leaves_is_one_line(parties: LinkedParties) -> None:
    with linked(parties) as (sender, receiver):
        got = Other(receiver.receive)
        sender.send(batch(0))
        got.join()
        receiver.close()
        with pytest.raises(PeerError, match="1 batches") as caught:
            sender.send_ahead([batch(1), batch(2)])
        assert caught.value.code == "device-left"
        with pytest.raises(UsageError):
            receiver.receive()


def test_silence_has_an_end(parties: LinkedParties) -> None:
    with pytest.raises(PeerError, match="no owner") as caught:
        parties.accept_link(wait_s=0.05)
    assert caught.value.code == "peer-timeout"
    with pytest.raises(PeerError, match="nobody listens") as caught:
        parties.offer(wait_s=0.05)
    assert caught.value.code == "peer-unreachable"
    other = Other(lambda: parties.accept_link(timeout_s=0.1))
    with parties.offer(timeout_s=0.1) as sender:
        receiver = other.join()
        with pytest.raises(PeerError, match="sent no batch in time"):
            receiver.receive()
        with pytest.raises(PeerError, match="ended the link"):
            sender.send(batch(0))


def test_an_engine_that_was_given_stays_open(parties: LinkedParties) -> None:
    engine = HostDevice(threads=1)
    with linked(parties, device=engine) as (sender, receiver):
        got = Other(receiver.receive)
        sender.send(batch(0))
        got.join()
    engine.allocate(64).close()
    engine.close()
    with pytest.raises(UsageError, match="'tpu'"):
        parties.accept_link(device="tpu")


@pytest.mark.parametrize("left", ["nothing", "socket"])
def test_the_socket_is_nobody_elses_business(parties: LinkedParties, left: str) -> None:
    """Its file is for this user alone, and one that a killed process left goes."""
    if left == "socket":
        dead = socket.socket(socket.AF_UNIX)
        dead.bind(str(parties.path))
        dead.close()
    listener = PathListener(parties.path)
    assert stat.S_IMODE(parties.path.stat().st_mode) == 0o600
    with pytest.raises(UnavailableError, match="a file exists there"):
        PathListener(parties.path)
    listener.close()
    parties.path.write_text("mine")
    with pytest.raises(UnavailableError, match="a file exists there"):
        PathListener(parties.path)
    assert parties.path.read_text() == "mine"


APART = {
    "cuda-pinned": ENGINES["cuda-pinned"],
    "cuda-gcc": ENGINES["cuda-gcc"],
    **ON_A_GPU,
}
MARKS = {"cuda-gcc": pytest.mark.gcc, "cuda": pytest.mark.gpu}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=MARKS.get(name, ())) for name in APART]
)
def test_a_device_with_memory_of_its_own(parties: LinkedParties, name: str) -> None:
    """More than one record a batch: they are copied over and opened together."""
    form = {"x": ("float32", (300, 1000)), "y": ("int64", (4,))}
    x = np.random.default_rng(0).normal(size=(300, 1000)).astype(np.float32)
    out = {"x": np.zeros_like(x), "y": np.zeros(4, dtype=np.int64)}
    engine = APART[name]()
    with linked(parties, form=form, device=engine) as (sender, receiver):
        sending = Other(
            lambda: sender.send_ahead({"x": x + n, "y": np.arange(4)} for n in range(3))
        )
        for number in range(2):
            assert receiver.receive_into(out)
            assert np.array_equal(out["x"], x + number)
        if name == "cuda":
            found = receiver.receive()
            assert found is not None
            assert found["x"].device.type == "cuda"
            assert np.array_equal(found["x"].cpu().numpy(), x + 2)
        else:
            assert receiver.receive_into(out)
        assert sending.join() == 3
    engine.close()
