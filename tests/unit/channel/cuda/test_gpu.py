"""On a GPU: what the stand-in cannot show. Everything else runs on both."""

from __future__ import annotations

import os

import pytest

from sealift.channel.cuda.bindings import open_driver
from sealift.channel.cuda.driver import Residence
from sealift.channel.cuda.opening import make_case, open_cuda, self_test
from sealift.channel.cuda.staging import HostBlock, prove_pinned, read_protection
from sealift.crypto.aead import Suite
from sealift.errors import AuthenticationError, UnavailableError

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]
MIB = 1 << 20


@pytest.fixture(scope="module")
def engine():
    made = open_cuda(test=lambda _: None)
    yield made
    made.close()


def test_the_self_test_passes_with_records_of_every_length(engine):
    self_test(engine)


def test_pinned_memory_is_what_the_driver_says(engine):
    driver = open_driver()
    truth = prove_pinned(driver)
    print(f"pinned: {truth}; protection: {read_protection()}")
    block = HostBlock(driver, 4096, pinned=True)
    assert driver.residence(block.address) in (Residence.PINNED, Residence.MANAGED)
    assert truth.proven or truth.why
    block.close()
    driver.close()


def test_a_gpu_that_is_full_says_so_and_goes_on(engine):
    with pytest.raises(UnavailableError) as caught:
        engine.allocate(engine.facts.memory_bytes + MIB)
    assert caught.value.code == "device-out-of-memory"
    self_test(engine, lengths=(1000,))


@pytest.mark.parametrize("suite", Suite, ids=lambda suite: suite.name)
def test_large_batches_open_and_one_flipped_bit_leaves_nothing(engine, suite):
    case = make_case(suite, [MIB] * 64)
    key = engine.key(suite, case.key)
    sealed, plain = engine.allocate(len(case.sealed)), engine.allocate(len(case.plain))
    engine.upload(case.sealed, sealed)
    engine.open(key, sealed, plain, case.places).wait()
    found = bytearray(len(case.plain))
    engine.download(plain, 0, found).wait()
    assert found == case.plain
    spoiled = bytearray(case.sealed)
    spoiled[case.places[40].sealed_offset + 77_777] ^= 0x10
    engine.upload(spoiled, sealed)
    with pytest.raises(AuthenticationError):
        engine.open(key, sealed, plain, case.places).wait()
    assert engine.core.count_nonzero(plain, 0, plain.nbytes) == 0
    for each in (key, sealed, plain):
        each.close()


def test_torch_reads_what_was_opened_without_a_copy(engine):
    torch = pytest.importorskip("torch")
    tensor = torch.zeros(1000, dtype=torch.float32, device="cuda")
    memory = engine.borrow(tensor)
    engine.follow(torch.cuda.current_stream().cuda_stream)
    content = os.urandom(4000)
    engine.upload(content, memory).wait()
    assert bytes(tensor.view(torch.uint8).cpu().numpy()) == content
    own = engine.allocate(4000)
    engine.upload(content, own).wait()
    seen = torch.as_tensor(own, device="cuda")
    assert bytes(seen.cpu().numpy()) == content
    (tensor + 1).sum().item()  # torch's own context is as it was


def test_copies_go_on_while_kernels_run(engine):
    """Truth of overlap: together they take less than one after the other."""
    from benchmarks.gpu import Transfer

    transfer = Transfer(engine, Suite.CHACHA20_POLY1305, 64 * MIB, MIB)
    transfer.copy()
    transfer.open()
    transfer.pipelined()
    transfer.close()
