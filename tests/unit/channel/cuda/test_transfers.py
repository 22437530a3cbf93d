"""Transfers to a GPU: how they are cut, what they cost, and what fails in the middle."""

from __future__ import annotations

import threading
from contextlib import suppress

import pytest

from sealift.channel.cuda import transfer as transfers
from sealift.channel.cuda.driver import CudaError
from sealift.channel.cuda.transfer import Arrived, Segmented, cut, least_piece
from sealift.channel.device.device import RecordPlace
from sealift.crypto.aead import Suite
from sealift.errors import AuthenticationError, SealiftError, UnavailableError
from tests.contract.test_device_engines import read
from tests.contract.test_transfers import Sent, pieces_are_short  # noqa: F401
from tests.sim.cuda_engines import WAYS, engine_on, gcc_engine, model_gpu
from tests.sim.linkworld import LinkWorld

GCM = Suite.AES_256_GCM
MIB = 1 << 20
ONCE = {"cuMemAlloc", "cuMemHostAlloc", "cuModuleGetFunction", "cuEventCreate"}


def places(lengths, gap=0):
    found, sealed, plain = [], gap, 0
    for length in lengths:
        found.append(RecordPlace(bytes(12), b"", sealed, plain, length))
        sealed, plain = sealed + length + 16 + gap, plain + length
    return found, sealed


def crossing(groups, ranges, least):
    """Copies, and of each piece its end and its items."""
    pieces, arrived = list(cut(ranges, least)), Arrived(groups)
    ends = [piece[-1].end for piece in pieces]
    copies = [copy for piece in pieces for copy in piece]
    return copies, [(end, arrived.until(end)) for end in ends]


@pytest.mark.parametrize("least", [1, 700, 5000, 10**6])
@pytest.mark.parametrize("gap", [0, 100])
@pytest.mark.parametrize("num_parts", [1, 2])
def test_all_bytes_cross_once_and_items_are_opened_once_they_are_there(
    least, gap, num_parts
):
    first, middle = places([0, 3000, 10, 1024, 1025, 0], gap)
    second, end = places([7000, 1], gap)
    second = [p._replace(sealed_offset=p.sealed_offset + middle) for p in second]
    groups = [Segmented(first, 3, 1024), Segmented(second, 7, 1024)]
    edge = first[3].sealed_offset
    ranges = [(0, middle + end)]
    if num_parts == 2:
        ranges = [(0, edge), (edge, middle + end)]
    copies, pieces = crossing(groups, ranges, least)
    assert [c.start for c in copies] == [0, *(c.end for c in copies[:-1])]
    assert copies[-1].end == pieces[-1][0] == middle + end
    items = [each for _, found in pieces for each in found]
    for number, group in enumerate(groups):
        spans = [(a, b) for which, a, b in items if which == number]
        assert [a for a, _ in spans] == [0, *(b for _, b in spans[:-1])]
        assert spans[-1][1] == len(group.places) * group.segments
    for byte, found in pieces:  # what a piece opens is there by then
        for which, first_item, end_item in found:
            group = groups[which]
            for item in range(first_item, end_item):
                place = group.places[item // group.segments]
                begins = item % group.segments * group.segment_bytes
                if begins < place.plaintext_bytes:
                    ends = min(begins + group.segment_bytes, place.plaintext_bytes)
                    assert place.sealed_offset + ends <= byte


def test_transfers_have_few_pieces_and_the_last_is_short():
    """And where a crossing costs much, fewer."""
    quick, slow = least_piece(3.3e-6), least_piece(330e-6)
    for total in (16, 64, 256, 4096):
        for least, most in ((quick, 9), (slow, 5)):
            copies = [piece[-1] for piece in cut([(0, total * MIB)], least)]
            assert len(copies) <= most
            assert len(copies) == 1 or copies[-1].end - copies[-1].start < 2 * least
    assert len(list(cut([(0, 64 * MIB)], slow))) == 1
    assert len(list(cut([(0, 64 * MIB)], quick))) > 3


def lone(engine, count, length=4096):
    """A transfer of so many records from pinned memory."""
    return Sent(engine, "pinned", (GCM,), [length] * count)


def calls_of(gpu, sent):
    gpu.calls.clear()
    verdicts = sent.transfer()
    made = [call for call in gpu.calls if call not in ONCE]
    verdicts.wait()
    return made


def test_a_piece_costs_four_calls_and_a_transfer_one_crossing_for_all_tables(
    monkeypatch,
):
    """Both are few: of 64 of the shortest pieces less than three calls for four."""
    gpu = model_gpu()
    engine = engine_on(gpu)
    monkeypatch.setattr(transfers, "least_piece", lambda _: 4096)
    few, many = lone(engine, 4), lone(engine, 64)
    for sent in (few, many):
        copies = len(list(cut([(0, len(sent.host))], 4096)))
        made = calls_of(gpu, sent)
        assert made.count("cuMemcpyHtoDAsync") == copies + 1  # and the table
        assert made.count("cuMemcpyDtoHAsync") == 1  # verdicts come back once
        assert made.count("cuLaunchKernel") == copies + 2  # the judge, the refusal
        assert len(made) <= 4 * copies + 6
    assert len(made) <= 3 * 64 / 4
    engine.close()


ENGINES = {way: lambda way=way: engine_on(model_gpu(), way) for way in WAYS}


@pytest.mark.parametrize("make", [*ENGINES.values(), gcc_engine])
def test_memory_is_used_again_in_the_order_of_the_calls(make):
    engine = make()
    sents = [Sent(engine, "pinned") for _ in range(4)]
    for sent in sents[1:]:
        sent.sealed, sent.plain = sents[0].sealed, sents[0].plain
    outs = []
    for sent in sents:
        verdicts, out = sent.transfer(), bytearray(sent.plain.nbytes)
        outs.append((verdicts, engine.download(sent.plain, 0, out), out, sent))
    for verdicts, copied, out, sent in outs:
        verdicts.wait()
        copied.wait()
        assert out == sent.expected
    engine.close()


@pytest.mark.parametrize("way", WAYS)
def test_a_transfer_that_cannot_be_queued_leaves_nothing(way):
    """One call after another fails; what was opened by then is overwritten."""
    for at in range(1, 200):
        gpu = model_gpu()
        engine = engine_on(gpu, way)
        sent = lone(engine, 6)
        driver, left = engine.core.driver, [at]

        def refuse(name, method, left=left):
            def call(*arguments):
                left[0] -= 1
                if left[0] == 0:
                    raise CudaError(name, 1, "CUDA_ERROR_INVALID_VALUE")
                return method(*arguments)

            return call

        for name in ("copy_to_device", "launch", "record", "wait", "copy_to_host"):
            setattr(driver, name, refuse(name, getattr(driver, name)))
        with suppress(SealiftError):
            sent.transfer().wait()
        for name in ("copy_to_device", "launch", "record", "wait", "copy_to_host"):
            delattr(driver, name)
        if left[0] > 0:
            assert read(engine, sent.plain) == sent.expected
            engine.close()
            return
        assert not any(gpu.read(sent.plain.address, sent.plain.nbytes)), at
        sent.transfer().wait()  # and the engine goes on
        assert read(engine, sent.plain) == sent.expected
        engine.close()
    pytest.fail("it makes more calls than were tried")


@pytest.mark.parametrize("lost_at", [0, 3, 9, 14, 20])
@pytest.mark.parametrize("way", WAYS)
def test_a_gpu_that_disappears_in_the_middle_is_one_line(way, lost_at):
    gpu = model_gpu()
    engine = engine_on(gpu, way)
    sent = lone(engine, 12)
    gpu.lose_after = lost_at
    with pytest.raises(UnavailableError) as caught:
        sent.transfer().wait()
    assert caught.value.code == "device-lost"
    engine.close()


@pytest.mark.parametrize("way", WAYS)
def test_the_gpu_alone_leaves_nothing_of_a_refused_transfer(way):
    """Whatever is queued behind it finds zeroes, before anybody on the host looks."""
    gpu = model_gpu()
    engine = engine_on(gpu, way)
    sent = Sent(engine, "pinned", (GCM, GCM))
    sent.host[sent.batches[1][1].places[2].sealed_offset] ^= 1
    verdicts = sent.transfer()
    assert verdicts.collect().count(0) == 1
    assert not any(gpu.read(sent.plain.address, sent.plain.nbytes))
    with pytest.raises(AuthenticationError):
        verdicts.wait()
    engine.close()


def test_what_a_broken_kernel_leaves_of_a_refused_transfer_is_overwritten():
    gpu = model_gpu()
    engine = engine_on(gpu)
    sent = Sent(engine, "pinned", (GCM, GCM))
    sent.host[sent.batches[1][1].places[2].sealed_offset] ^= 1
    inner = gpu.runner.run
    gpu.runner.run = lambda name, *rest: (
        None if name == "sealift_refuse_batch" else inner(name, *rest)
    )
    verdicts = sent.transfer()
    verdicts.collect()
    assert any(gpu.read(sent.plain.address, sent.plain.nbytes))  # the mutant's
    with pytest.raises(AuthenticationError):
        verdicts.wait()
    assert not any(gpu.read(sent.plain.address, sent.plain.nbytes))
    engine.close()


def test_a_piece_is_opened_when_it_has_crossed():
    """The second copy is held up; the first opening sees nothing of it."""
    gpu = model_gpu()
    engine = engine_on(gpu)
    sent = lone(engine, 12)
    held, go_on, other = [], threading.Event(), engine.allocate(1)
    copying = engine.core.up[0].lane.stream
    copy = engine.core.driver.copy_to_device

    def hold(to, origin, nbytes, stream):
        if stream is copying:
            held.append(to)
            if len(held) == 3:  # behind the first piece and the table
                stream.put(lambda: go_on.wait(300))
        copy(to, origin, nbytes, stream)

    engine.core.driver.copy_to_device = hold
    verdicts = sent.transfer()
    ticket = engine.upload(b"x", other)  # behind all copies
    assert not ticket.is_done()
    go_on.set()
    verdicts.wait()
    assert len(held) > 3
    assert read(engine, sent.plain) == sent.expected
    engine.close()


def test_the_table_crosses_behind_the_first_piece_and_before_all_others(monkeypatch):
    """A copy on another stream came behind all of them on an H100, and so did kernels."""
    gpu = model_gpu()
    engine = engine_on(gpu)
    sent = lone(engine, 12)
    sent.transfer().wait()
    crossed, copy = [], engine.core.driver.copy_to_device
    inside = range(sent.sealed.address, sent.sealed.address + sent.sealed.nbytes)

    def note(to, origin, nbytes, stream):
        crossed.append((to in inside, stream))
        copy(to, origin, nbytes, stream)

    monkeypatch.setattr(engine.core.driver, "copy_to_device", note)
    started = []
    launch = engine.core.driver.launch
    monkeypatch.setattr(
        engine.core.driver,
        "launch",
        lambda *call: (started.append(len(crossed)), launch(*call)),
    )
    sent.transfer().wait()
    assert [here for here, _ in crossed] == [True, False, *[True] * (len(crossed) - 2)]
    assert {stream for _, stream in crossed} == {engine.core.up[0].lane.stream}
    assert min(started) == len(crossed)  # nothing is thought of before all copies
    engine.close()


def test_what_one_transfer_left_in_the_scratch_judges_no_other():
    """Parts of hashes of an earlier transfer stay there; a piece that is not opened must
    not pass by them."""
    engine = gcc_engine()
    sent = Sent(engine, "pinned", (GCM,), [70_000] * 3)
    for _ in range(4):  # all tables have scratch, with parts that would fit
        sent.transfer().wait()
    sent.host[sent.batches[0][1].places[1].sealed_offset + 40_000] ^= 1
    with pytest.raises(AuthenticationError):
        sent.transfer().wait()
    assert not any(read(engine, sent.plain))
    engine.close()


def test_no_room_for_pinned_memory_is_one_line():
    gpu = model_gpu()
    engine = engine_on(gpu)
    gpu.pinnable_bytes = 1 << 20
    mine = memoryview(bytearray(3 << 20))
    for ask in (lambda: engine.pinned(3 << 20), lambda: engine.pin(mine)):
        with pytest.raises(
            UnavailableError, match="3,145,728 bytes of pinned"
        ) as caught:
            ask()
        assert (caught.value.code, caught.value.exit_code) == ("no-pinned-memory", 3)
    engine.close()


def test_a_link_or_a_loader_without_pinned_memory_is_one_line_and_leaves_nothing():
    gpu = model_gpu()
    engine = engine_on(gpu)
    kept, gpu.pinnable_bytes = len(gpu.blocks), 1000
    with pytest.raises(UnavailableError) as caught:
        LinkWorld(engine=engine)
    assert caught.value.code == "no-pinned-memory"
    assert len(gpu.blocks) <= kept + 1  # the test's own memory
    engine.close()


def test_memory_that_is_pinned_crosses_by_itself_until_it_is_let_go():
    gpu = model_gpu()
    engine = engine_on(gpu)
    sent = Sent(engine, "ordinary", (GCM,))
    let_go = engine.pin(sent.host)
    made = calls_of(gpu, sent)
    assert made.count("cuEventSynchronize") == 0  # no slot was waited for
    let_go()
    let_go()
    assert not gpu.registered
    assert calls_of(gpu, sent).count("cuEventSynchronize") > 0
    assert read(engine, sent.plain) == sent.expected
    engine.close()


@pytest.mark.parametrize("way", ["staged", "confidential"])
def test_memory_is_not_pinned_where_that_is_not_proven_or_of_no_use(way):
    gpu = model_gpu()
    engine = engine_on(gpu, way)
    assert engine.pin(memoryview(bytearray(5000))) is None
    assert not gpu.registered
    engine.close()
    gpu = model_gpu(pinned="ordinary")  # the driver does not call it pinned
    engine = engine_on(gpu)
    assert engine.pin(memoryview(bytearray(5000))) is None
    assert not gpu.registered
    engine.close()
