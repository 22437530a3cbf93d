"""The link engine, with the CUDA engine at its end."""

from __future__ import annotations

import os

import pytest

from sealift.channel.cuda.opening import open_cuda
from sealift.errors import AuthenticationError, UnavailableError
from tests.sim.cuda_engines import engine_on, gcc_engine, model_gpu
from tests.sim.linkworld import RECORD_BYTES, LinkWorld

ENGINES = {
    "pinned": lambda: engine_on(model_gpu()),
    "confidential": lambda: engine_on(model_gpu(), "confidential"),
    "gcc": gcc_engine,
    "gpu": lambda: open_cuda(test=lambda _: None),
}
NAMES = [*list(ENGINES)[:3], pytest.param("gpu", marks=pytest.mark.gpu)]
NBYTES = 9 * RECORD_BYTES + 77


def flip_in_fifth(number, frame):
    if number != 5:
        return [frame]
    changed = bytearray(frame)
    changed[len(frame) // 2] ^= 1
    return [bytes(changed)]


@pytest.mark.parametrize("name", NAMES)
def test_transfers_arrive_whole(name):
    world = LinkWorld(engine=ENGINES[name]())
    for _ in range(2):
        text = os.urandom(NBYTES)
        arrived = world.cross(lambda sent=text: world.sender.send(sent))
        assert arrived.total_bytes == NBYTES
        assert world.content()[:NBYTES] == text
    world.close()


@pytest.mark.parametrize("name", NAMES)
def test_a_flipped_bit_on_the_way_leaves_nothing(name):
    world = LinkWorld(engine=ENGINES[name](), attacker=flip_in_fifth)
    refused = world.cross(lambda: world.sender.send(os.urandom(NBYTES)))
    assert isinstance(refused, AuthenticationError)
    assert not any(world.content())
    world.close()


def test_a_gpu_that_disappears_ends_the_transfer_with_one_line():
    gpu = model_gpu()
    world = LinkWorld(engine=engine_on(gpu), timeout_s=0.3)
    gpu.lose_after = 40
    lost = world.cross(lambda: world.sender.send(os.urandom(NBYTES)))
    assert isinstance(lost, UnavailableError)
    assert lost.code == "device-lost"
    world.close()
