"""Keys do not print, pickle, copy, compare, survive a wipe or survive a fork."""

from __future__ import annotations

import copy
import os
import pickle  # noqa: TID251 - to see it refused
from collections.abc import Callable
from typing import Any

import pytest

from sealift.crypto import keys
from sealift.crypto.aead import Aead, Suite
from sealift.crypto.hpke import HpkePrivateKey
from sealift.crypto.identity import create_identity
from sealift.crypto.keys import TOKEN, SecretKey
from sealift.crypto.sign import SigningKey
from sealift.errors import UsageError

MATERIAL = bytes(range(65, 97))  # printable, so that a leak would show

SECRETS: dict[str, Callable[[], Any]] = {
    "SecretKey": lambda: SecretKey(MATERIAL),
    "SigningKey": lambda: SigningKey(SecretKey(MATERIAL)),
    "HpkePrivateKey": lambda: HpkePrivateKey(SecretKey(MATERIAL * 3)),
    "Identity": lambda: create_identity("clinic"),
}
PRINTERS: dict[str, Callable[[Any], str]] = {
    "repr": repr,
    "str": str,
    "format": format,
    "f-string": lambda key: f"{key} {key!r} {key!a}",
    "percent": lambda key: "%s %r" % (key, key),  # noqa: UP031
    "in a list": lambda key: str([key]),
    "in a traceback": lambda key: str(UsageError(f"bad key {key}")),
}


@pytest.mark.parametrize("printer", PRINTERS.values(), ids=PRINTERS)
@pytest.mark.parametrize("make", SECRETS.values(), ids=SECRETS)
def test_never_prints(make: Callable[[], Any], printer: Callable[[Any], str]) -> None:
    shown = printer(make())
    for leak in (MATERIAL.decode(), MATERIAL.hex(), repr(MATERIAL), "bytearray"):
        assert leak not in shown


def test_redacted_form() -> None:
    assert repr(SecretKey(MATERIAL)) == "<SecretKey 256 bits>"
    assert not hasattr(SecretKey(MATERIAL), "__dict__")


COPIES: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    **{f"pickle {n}": lambda key, n=n: pickle.dumps(key, n) for n in range(6)},  # type: ignore[misc]
}


@pytest.mark.parametrize("duplicate", COPIES.values(), ids=COPIES)
@pytest.mark.parametrize("make", SECRETS.values(), ids=SECRETS)
def test_no_copies(make: Callable[[], Any], duplicate: Callable[[Any], Any]) -> None:
    with pytest.raises((UsageError, TypeError), match="not pickled or copied"):
        duplicate(make())


def test_no_pickle_of_a_cipher() -> None:
    with pytest.raises(TypeError):
        pickle.dumps(Aead(Suite.AES_256_GCM, SecretKey(MATERIAL)))


def test_reveal_needs_the_token() -> None:
    key = SecretKey(MATERIAL)
    assert key.reveal(TOKEN) == MATERIAL
    for other in (None, True, keys._RevealToken()):
        with pytest.raises(UsageError, match="TOKEN"):
            key.reveal(other)  # type: ignore[arg-type]


def test_wipe_overwrites_and_ends_the_key() -> None:
    key = SecretKey(MATERIAL)
    memory = key._material  # the object's own memory, not a copy
    assert memory == MATERIAL
    key.wipe()
    assert memory == bytes(32)
    assert len(key) == 32
    with pytest.raises(UsageError, match="wiped"):
        key.reveal(TOKEN)


def test_owns_its_bytes() -> None:
    source = bytearray(MATERIAL)
    key = SecretKey.from_bytes(source)
    source[:] = bytes(32)
    assert key.reveal(TOKEN) == MATERIAL


def test_equality_is_identity() -> None:
    key = SecretKey(MATERIAL)
    assert key != SecretKey(MATERIAL)
    assert key in {key}


def test_generate() -> None:
    made = [SecretKey.generate(length) for length in (16, 32, 96)]
    assert [len(key) for key in made] == [16, 32, 96]
    assert SecretKey.generate().reveal(TOKEN) != SecretKey.generate().reveal(TOKEN)


def test_no_empty_key() -> None:
    with pytest.raises(UsageError, match="empty"):
        SecretKey(b"")


def seen_by_a_forked_child(key: SecretKey) -> bytes:
    """What a real child process finds: its memory of the key, then its reveal."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write_end, bytes(key._material))
            os.write(write_end, key.reveal(TOKEN))
        except UsageError:
            os.write(write_end, b" wiped")
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        found = pipe.read()
    assert os.waitpid(child, 0)[1] == 0
    return found


# Python warns of forks under threads; this child only writes to a pipe and exits.
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_fork_wipes_the_childs_keys_only() -> None:
    key = SecretKey(MATERIAL)
    assert seen_by_a_forked_child(key) == bytes(32) + b" wiped"
    assert key.reveal(TOKEN) == MATERIAL


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_positive_control_an_unregistered_key_survives_the_fork() -> None:
    key = SecretKey(MATERIAL)
    keys._LIVE.discard(key)
    assert seen_by_a_forked_child(key) == MATERIAL * 2


class WipedWhileRead(bytearray):
    """Memory of a key that another thread wipes just before it is copied."""

    key: SecretKey

    def __bytes__(self) -> bytes:
        self.key.wipe()
        return bytes(memoryview(self))


class ReadWhileWiped(bytearray):
    """Memory of a key that another thread reads just after it was overwritten."""

    key: SecretKey

    def __setitem__(self, where: Any, what: Any) -> None:
        super().__setitem__(where, what)
        with pytest.raises(UsageError, match="wiped"):
            self.key.reveal(TOKEN)


@pytest.mark.parametrize("memory_type", [WipedWhileRead, ReadWhileWiped])
def test_zeroes_are_never_taken_for_a_key(memory_type: Any) -> None:
    key = SecretKey.generate()
    memory = memory_type(key.reveal(TOKEN))
    memory.key = key
    key._material = memory
    if memory_type is WipedWhileRead:
        with pytest.raises(UsageError, match="wiped"):
            key.reveal(TOKEN)
    key.wipe()
    assert not any(memory)
