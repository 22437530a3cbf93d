"""Make the CUDA engine of this machine ready, or say in one line why there is none.

It is compared with the CPU before anybody relies on it: both suites, lengths around every
edge the kernels have, associated data of odd lengths. What the CPU sealed must open on
the device, what the device seals must be the CPU's bytes, and after one flipped bit
exactly that record must fail, leaving zeroes.
An engine that fails is refused by name; nothing else takes its place by itself.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Final

from sealift.channel.cuda.bindings import open_driver
from sealift.channel.cuda.compilers import CudaKernels
from sealift.channel.cuda.driver import Driver, faults_as_errors
from sealift.channel.cuda.engine import SLOTS, CudaEngine
from sealift.channel.cuda.memory import CudaMemory
from sealift.channel.cuda.staging import (
    GpuProtection,
    choose_copies,
    measure_toll,
    prove_pinned,
    read_protection,
)
from sealift.channel.cuda.transfer import CudaKey, CudaVerdicts
from sealift.channel.device.device import RecordPlace
from sealift.crypto.aead import NONCE_BYTES, TAG_BYTES, Aead, Suite
from sealift.crypto.keys import SecretKey
from sealift.errors import AuthenticationError, UnavailableError
from sealift.events import Sink, discard, emit

LEAST_CAPABILITY = (8, 0)  # asynchronous copies into shared memory
EDGES: Final = (
    0, 1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 255, 256, 257, 2047, 2048, 2049,
    8191, 8192, 8193, 16383, 16384, 16385, 65536,
)  # fmt: skip
LARGE: Final = (1 << 20, (1 << 20) + 5, 4 << 20)
_ASSOCIATED: Final = (73, 0, 1, 16, 17, 255, 256)
_ALIGNED: Final = 16


@dataclass(frozen=True, slots=True)
class Case:
    """A batch that the CPU sealed."""

    suite: Suite
    key: SecretKey
    plain: bytes
    sealed: bytes
    places: tuple[RecordPlace, ...]


def self_test(engine: CudaEngine, *, lengths: Sequence[int] = (*EDGES, *LARGE)) -> None:
    """Compare an engine with the CPU's.

    Raises:
        UnavailableError: code ``engine-self-test``, naming what came out wrong.
    """
    for suite in engine.suites():
        case = make_case(suite, lengths)
        for what, works in _checks(engine, case):
            if not works:
                raise UnavailableError(
                    f"engine {engine.name} failed its self-test",
                    why=f"{suite.name}: {what}",
                    code="engine-self-test",
                )


def open_cuda(
    ordinal: int = 0,
    *,
    kernels: CudaKernels | None = None,
    driver: Callable[[int], Driver] = open_driver,
    protection: Callable[[], GpuProtection] = read_protection,
    test: Callable[[CudaEngine], None] = self_test,
    slots: int = SLOTS,
    sink: Sink = discard,
) -> CudaEngine:
    """The engine on GPU ``ordinal``, compared with the CPU's.

    Args:
        ordinal: Which GPU, in CUDA's order.
        kernels: What runs on it; Sealift's own if None.
        driver: Opens the GPU.
        protection: Asks for the state of confidential computing.
        test: Compares the engine before it is given out.
        slots: Slots of each ring.
        sink: Told how copies are made, and why.

    Raises:
        UnavailableError: no package, driver, GPU or compiler, a driver that is too old,
            a GPU that is not supported, or an engine that fails its self-test.
    """
    opened = driver(ordinal)
    try:
        _require_supported(opened)
        engine = _build(opened, kernels or CudaKernels(), protection, slots, sink)
    except BaseException:
        opened.close()
        raise
    try:
        test(engine)
    except BaseException:
        engine.close()
        raise
    return engine


def _build(
    driver: Driver,
    kernels: CudaKernels,
    protection: Callable[[], GpuProtection],
    slots: int,
    sink: Sink,
) -> CudaEngine:
    with faults_as_errors():
        truth = prove_pinned(driver)
        state = protection()
        copies = choose_copies(state, truth, measure_toll(driver, truth))
        engine = CudaEngine(driver, kernels, copies, slots=slots)
    emit(
        sink,
        "cuda.opened",
        gpu=driver.facts.name,
        confidential=state.confidential,
        pinned=truth.proven,
        threads=copies.threads,
        contexts=copies.contexts,
        toll_s=copies.toll_s,
        copies=copies.why,
        kernels=kernels.origin,
    )
    return engine


def _require_supported(driver: Driver) -> None:
    found = driver.facts.capability
    if found < LEAST_CAPABILITY:
        raise UnavailableError(
            f"{driver.facts.name} is not supported",
            why=f"it has compute capability {_say(found)}; {_say(LEAST_CAPABILITY)} is needed",
            code="gpu-unsupported",
        )


def _say(capability: tuple[int, int]) -> str:
    return ".".join(str(part) for part in capability)


def make_case(suite: Suite, lengths: Sequence[int]) -> Case:
    """Records of these lengths under a fresh key, some at odd addresses."""
    key, plain, sealed = SecretKey.generate(), bytearray(), bytearray()
    cipher, places = Aead(suite, key), []
    for number, nbytes in enumerate(lengths):
        _pad(plain, odd=number % 5 == 4)
        _pad(sealed, odd=number % 7 == 6)
        text, nonce = secrets.token_bytes(nbytes), secrets.token_bytes(NONCE_BYTES)
        associated = secrets.token_bytes(_ASSOCIATED[number % len(_ASSOCIATED)])
        places.append(RecordPlace(nonce, associated, len(sealed), len(plain), nbytes))
        out = bytearray(nbytes + TAG_BYTES)
        cipher.seal_into(nonce, text, associated, out)
        plain += text
        sealed += out
    return Case(suite, key, bytes(plain), bytes(sealed), tuple(places))


def _checks(engine: CudaEngine, case: Case) -> Iterator[tuple[str, bool]]:
    yield "bytes that the CPU sealed do not open correctly", _opens(engine, case)
    yield ("bytes sent in pieces do not open correctly", _crosses(engine, case))
    yield "its sealed bytes differ from those of the CPU", _seals(engine, case)
    for what, spoilt in _spoilt(case):
        yield (
            f"it does not notice a flipped bit in the {what}",
            _refuses(engine, spoilt),
        )
    what, spoilt = next(_spoilt(case))
    yield (
        f"it does not notice a flipped {what} in transfer",
        _refuses_crossing(engine, spoilt),
    )


@contextmanager
def _on_device(
    engine: CudaEngine, case: Case
) -> Iterator[tuple[CudaKey, CudaMemory, CudaMemory]]:
    """The batch's key on the device, and room for it, sealed and plain."""
    with ExitStack() as made:
        key = engine.key(case.suite, case.key)
        made.callback(key.close)
        sealed = engine.allocate(len(case.sealed))
        made.callback(sealed.close)
        plain = engine.allocate(len(case.plain))
        made.callback(plain.close)
        yield key, sealed, plain


def _opens(engine: CudaEngine, case: Case) -> bool:
    found = bytearray(len(case.plain))
    with _on_device(engine, case) as (key, sealed, plain):
        engine.upload(case.sealed, sealed)
        if not _verifies(engine.open(key, sealed, plain, case.places)):
            return False
        engine.download(plain, 0, found).wait()
    return all(
        place.plain_in(found) == place.plain_in(case.plain) for place in case.places
    )


def _crosses(engine: CudaEngine, case: Case) -> bool:
    found = bytearray(len(case.plain))
    with _on_device(engine, case) as memories, _sent(engine, case) as host:
        if not _verifies(_cross(engine, case, memories, host)):
            return False
        engine.download(memories[2], 0, found).wait()
    return all(
        place.plain_in(found) == place.plain_in(case.plain) for place in case.places
    )


def _refuses_crossing(engine: CudaEngine, spoilt: tuple[Case, int]) -> bool:
    case, _ = spoilt
    with _on_device(engine, case) as memories, _sent(engine, case) as host:
        verdicts = _cross(engine, case, memories, host)
        return _leaves_nothing(engine, verdicts, memories[2], spoilt)


def _cross(
    engine: CudaEngine,
    case: Case,
    memories: tuple[CudaKey, CudaMemory, CudaMemory],
    host: memoryview,
) -> CudaVerdicts:
    key, sealed, plain = memories
    return engine.transfer([(host, 0)], sealed, plain, [(key, case.places)])


@contextmanager
def _sent(engine: CudaEngine, case: Case) -> Iterator[memoryview]:
    """The sealed bytes where transfers are fastest from."""
    block = engine.pinned(len(case.sealed))
    try:
        view = block.view if block else memoryview(bytearray(len(case.sealed)))
        view[:] = case.sealed
        yield view
    finally:
        if block:
            block.close()


def _seals(engine: CudaEngine, case: Case) -> bool:
    found = bytearray(len(case.sealed))
    with _on_device(engine, case) as (key, sealed, plain):
        engine.upload(case.plain, plain)
        event = engine.seal(key, plain, sealed, case.places)
        engine.download(sealed, 0, found, after=[event]).wait()
    return all(
        place.sealed_in(found) == place.sealed_in(case.sealed) for place in case.places
    )


def _refuses(engine: CudaEngine, spoilt: tuple[Case, int]) -> bool:
    """Exactly the spoilt record fails, and nothing is left of the whole batch."""
    case, _ = spoilt
    with _on_device(engine, case) as (key, sealed, plain):
        engine.upload(case.sealed, sealed)
        verdicts = engine.open(key, sealed, plain, case.places)
        return _leaves_nothing(engine, verdicts, plain, spoilt)


def _leaves_nothing(
    engine: CudaEngine,
    verdicts: CudaVerdicts,
    plain: CudaMemory,
    spoilt: tuple[Case, int],
) -> bool:
    case, wrong = spoilt
    expected = [number != wrong for number in range(len(case.places))]
    # Before anybody waits: the kernels alone must have left nothing.
    return (
        list(verdicts.collect()) == expected
        and engine.core.count_nonzero(plain, 0, plain.nbytes) == 0
        and not _verifies(verdicts)
    )


def _verifies(verdicts: CudaVerdicts) -> bool:
    try:
        verdicts.wait()
    except AuthenticationError:
        return False
    return True


def _spoilt(case: Case) -> Iterator[tuple[str, tuple[Case, int]]]:
    """The batch with one bit flipped in one record; which record, in turn."""
    total = len(case.places)
    last = total - 1
    middle = max(range(total), key=lambda n: min(case.places[n].plaintext_bytes, 9000))
    for what, number, at in (
        ("first byte", middle, 0),
        ("last byte", last, case.places[last].plaintext_bytes - 1),
        ("tag", 0, case.places[0].plaintext_bytes + TAG_BYTES - 1),
    ):
        sealed = bytearray(case.sealed)
        sealed[case.places[number].sealed_offset + at] ^= 1 << number % 8
        yield what, (replace(case, sealed=bytes(sealed)), number)
    for what, changed in (
        ("associated data", _replace_associated(case.places[middle])),
        ("nonce", _replace_nonce(case.places[middle])),
    ):
        places = (*case.places[:middle], changed, *case.places[middle + 1 :])
        yield what, (replace(case, places=places), middle)


def _replace_associated(place: RecordPlace) -> RecordPlace:
    """One bit of the associated data flipped, or one byte more where there is none."""
    text = place.associated_data
    flipped = bytes([text[0] ^ 4]) + text[1:] if text else b"\0"
    return place._replace(associated_data=flipped)


def _replace_nonce(place: RecordPlace) -> RecordPlace:
    """One bit of the nonce flipped."""
    return place._replace(nonce=place.nonce[:-1] + bytes([place.nonce[-1] ^ 1]))


def _pad(out: bytearray, *, odd: bool) -> None:
    out += bytes(-len(out) % _ALIGNED + (3 if odd else 0))
