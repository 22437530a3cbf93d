"""Probes of ciphers: their rates, two threads against one, a sealed link against a copy."""

from __future__ import annotations

import ctypes
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import quantiles
from typing import Final

from sealift.cli.doctor.probe import GB, Finding, measure_rate, say_rate
from sealift.crypto.aead import NONCE_BYTES, TAG_BYTES, Aead, Suite
from sealift.crypto.keys import SecretKey
from sealift.crypto.vendorkeys import library_version

_NBYTES: Final = 1 << 20
_GOOD: Final = 8e9  # below, a core and not a PCIe 4 link is the limit
_RECORDS: Final = 300  # for each thread
_TRIES: Final = 3
_TRANSFERS: Final = (16, 64)  # MiB
_PAIRS: Final = 10
_FREE: Final = 1.4
_SYSTEM: Final = ("libcrypto.so.3", "libcrypto.so.4", "libcrypto.so.1.1")
_CALLS: Final = {
    Suite.AES_256_GCM: "EVP_aes_256_gcm",
    Suite.CHACHA20_POLY1305: "EVP_chacha20_poly1305",
}
_FLAGS: Final = ("aes", "pclmulqdq", "avx2", "vaes", "vpclmulqdq", "avx512f")


def look_at_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> Iterator[Finding]:
    """AES instructions of the processor."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        lines = []
    named = [line.split(":", 1)[1].split() for line in lines if "flags" in line[:8]]
    has = {flag: flag in (named[0] if named else ()) for flag in _FLAGS}
    wide = has["vaes"] and has["vpclmulqdq"]
    yield Finding(
        "AES instructions",
        ", ".join(flag for flag in _FLAGS if has[flag]) or "none",
        "wide AES instructions (VAES) encrypt several blocks at a time"
        if wide
        else (
            "encrypts at most one block per instruction: about a quarter of the speed "
            "with VAES"
        ),
        "" if wide else "A newer processor seals faster; no setting makes up for it",
        "good" if wide else "limits",
        dict(has),
    )


def look_at_cryptography() -> Iterator[Finding]:
    """The library that Sealift seals with, in both suites."""
    for suite in Suite:
        rate = measure_rate(_sealing(suite), _NBYTES)
        # ChaCha20 is for data that is sealed once; no core is fast at it.
        slow = rate < _GOOD and suite is Suite.AES_256_GCM
        yield Finding(
            _name(suite),
            f"{say_rate(rate)} per core, {library_version()}",
            f"one core can seal for a link of {8 * rate / GB:.0f} Gbit/s",
            "Use a processor with VAES, seal on several cores, or seal in advance"
            if slow
            else "",
            "limits" if slow else "good",
            {"bytes_per_s": round(rate), "record_bytes": _NBYTES},
        )


def look_at_system_library(names: tuple[str, ...] = _SYSTEM) -> Iterator[Finding]:
    """The system's libcrypto, if there is one; Sealift does not use it."""
    library = _load(names)
    if library is None:
        meaning = "not needed: Sealift brings its own library"
        yield Finding("system libcrypto", "none", meaning)
        return
    version = ctypes.cast(library.OpenSSL_version(0), ctypes.c_char_p).value or b""
    name = " ".join(version.decode("ascii", "replace").split()[:2])
    for suite, call in _CALLS.items():
        rate = measure_rate(_system_sealing(library, call), _NBYTES)
        yield Finding(
            f"{_name(suite)} of the system",
            f"{say_rate(rate)} per core, system {name}",
            "for comparison only: Sealift does not use it",
            figures={"bytes_per_s": round(rate), "library": name},
        )


def look_at_threads() -> Iterator[Finding]:
    """Whether sealing leaves the interpreter: two threads against one."""
    cores = len(os.sched_getaffinity(0))
    if cores < 2:
        yield Finding(
            "two threads",
            "not measured: this process may use one core only",
            "whether two threads seal faster than one is not known here",
        )
        return
    gain = max(_sealed_by(2) / _sealed_by(1) for _ in range(_TRIES))
    free = gain > _FREE
    yield Finding(
        "two threads",
        f"{gain:.2f} times the speed of one thread",
        "several threads can seal records at the same time"
        if free
        else (
            "two threads are hardly faster than one: they wait for each other, or "
            "other programs use the cores"
        ),
        ""
        if free
        else "Use cryptography 50 or newer, and check which other programs run",
        "good" if free else "limits",
        {"gain": round(gain, 3), "cores": cores},
    )


def look_at_link() -> Iterator[Finding]:
    """What share of a plain copy's speed a sealed link will reach on this machine.

    Both ends of a link work at the same time, each on a core: while one record is opened
    the next one is sealed. So the share is memcpy's time over the cipher's, for as many
    bytes as cross.
    """
    shares = {mib: _link_shares(mib) for mib in _TRANSFERS}
    predicted = ", ".join(
        f"{middle:.2f} at {mib} MiB ({low:.2f} to {high:.2f})"
        for mib, (low, middle, high) in shares.items()
    )
    yield Finding(
        "sealed link",
        f"predicted share of a plain copy's speed: {predicted}",
        "one core's cipher, compared with its memcpy, limits sealed transfers between "
        "two processes; other costs, which both have, make the difference smaller",
        figures={
            f"share_at_{mib}_mib": round(middle, 3)
            for mib, (_, middle, _) in shares.items()
        },
    )


def _link_shares(mib: int) -> list[float]:
    """Quartiles of memcpy's processor time over the cipher's, measured in turns."""
    source = memoryview(bytearray(os.urandom(_NBYTES) * mib))
    target = memoryview(bytearray((_NBYTES + TAG_BYTES) * mib))
    cipher, number = Aead(Suite.AES_256_GCM, SecretKey.generate()), iter(range(1 << 40))

    def copy(record: memoryview, slot: memoryview) -> None:
        slot[:_NBYTES] = record

    def seal(record: memoryview, slot: memoryview) -> None:
        nonce = next(number).to_bytes(NONCE_BYTES, "big")
        cipher.seal_into(nonce, record, b"", slot)

    def took(step: Callable[[memoryview, memoryview], None]) -> float:
        start = time.thread_time()  # not what other programs take of the core
        for at in range(mib):
            slot = target[at * (_NBYTES + TAG_BYTES) :][: _NBYTES + TAG_BYTES]
            step(source[at * _NBYTES :][:_NBYTES], slot)
        return time.thread_time() - start

    took(seal)
    return quantiles([took(copy) / took(seal) for _ in range(_PAIRS)], n=4)


def _name(suite: Suite) -> str:
    return (
        suite.name.replace("_", "-").replace("CHACHA", "ChaCha").replace("POLY", "Poly")
    )


def _sealing(suite: Suite) -> Callable[[], object]:
    cipher, plain = Aead(suite, SecretKey.generate()), secrets.token_bytes(_NBYTES)
    out, number = bytearray(_NBYTES + TAG_BYTES), iter(range(1 << 40))
    return lambda: cipher.seal_into(
        next(number).to_bytes(NONCE_BYTES, "big"), plain, b"", out
    )


def _sealed_by(threads: int) -> float:
    """Return how many records a second ``threads`` threads seal together."""
    steps = [_sealing(Suite.AES_256_GCM) for _ in range(threads)]

    def work(step: Callable[[], object]) -> None:
        for _ in range(_RECORDS):
            step()

    workers = [threading.Thread(target=work, args=(step,)) for step in steps]
    start = time.perf_counter()
    for each in workers:
        each.start()
    for each in workers:
        each.join()
    return threads * _RECORDS / (time.perf_counter() - start)


def _load(names: tuple[str, ...]) -> ctypes.CDLL | None:
    for name in names:
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        if hasattr(library, "EVP_CIPHER_CTX_new"):
            library.OpenSSL_version.restype = ctypes.c_void_p
            library.EVP_CIPHER_CTX_new.restype = ctypes.c_void_p
            return library
    return None


def _system_sealing(library: ctypes.CDLL, cipher: str) -> Callable[[], object]:
    """Seal once per call under a fresh nonce; the tag is computed and not read."""
    getattr(library, cipher).restype = ctypes.c_void_p
    context = ctypes.c_void_p(library.EVP_CIPHER_CTX_new())
    kind = ctypes.c_void_p(getattr(library, cipher)())
    key, plain = secrets.token_bytes(32), secrets.token_bytes(_NBYTES)
    out, length = ctypes.create_string_buffer(_NBYTES + 64), ctypes.c_int(0)
    number = iter(range(1 << 40))
    library.EVP_EncryptInit_ex(context, kind, None, key, bytes(NONCE_BYTES))

    def seal() -> None:
        nonce = next(number).to_bytes(NONCE_BYTES, "big")
        library.EVP_EncryptInit_ex(context, None, None, None, nonce)
        library.EVP_EncryptUpdate(context, out, ctypes.byref(length), plain, _NBYTES)
        library.EVP_EncryptFinal_ex(context, out, ctypes.byref(length))

    return seal
