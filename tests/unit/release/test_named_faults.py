"""What is wrong with a machine is called what it is: descriptors, folders, damage."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from sealift.crypto.identity import Identity, create_identity
from sealift.crypto.keys import SecretKey
from sealift.data.schedule.memory import SharedBuffer
from sealift.errors import SealiftError, no_room
from sealift.release.broker.stores import keep_keys, opened_vault
from sealift.release.vault.vault import Vault

NOBODY = 65534


@contextmanager
def few_descriptors() -> Iterator[list[int]]:
    """No file can be opened any more."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, limits[1]))
    try:
        with suppress(OSError):
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        yield taken
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def refusal(step: Callable[[], object]) -> SealiftError:
    with pytest.raises(SealiftError) as caught:
        step()
    return caught.value


@pytest.fixture
def owner() -> Identity:
    return create_identity("ada")


@pytest.fixture
def path(tmp_path: Path, owner: Identity) -> Path:
    made = tmp_path / "vault.db"
    keep_keys(made, owner, {"one": SecretKey.generate(), "two": SecretKey.generate()})
    return made


def test_no_descriptor_is_not_no_memory() -> None:
    with few_descriptors():
        error = refusal(lambda: SharedBuffer(4096))
    assert (error.code, error.exit_code) == ("no-descriptors", 3)
    SharedBuffer(4096).close()  # control


def test_no_memory_stays_what_it_is() -> None:
    error = no_room("a page", OSError(errno.ENOMEM, "Cannot allocate memory"))
    assert error.code == "no-memory"


def test_a_database_that_finds_no_descriptor(path: Path, owner: Identity) -> None:
    with closing(Vault.open(path, owner)):
        pass
    with few_descriptors():
        codes = {refusal(lambda: Vault.open(path, owner)).code}
    # One descriptor is free: the file itself opens, and what lies beside it does not.
    with few_descriptors() as taken:
        os.close(taken.pop())
        codes.add(refusal(lambda: Vault.open(path, owner)).code)
    assert codes == {"no-descriptors"}
    with closing(Vault.open(path, owner)):  # control
        pass


@contextmanager
def as_nobody() -> Iterator[None]:
    """Root is refused nothing."""
    was = os.geteuid()
    if was == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(was)


def test_a_folder_that_cannot_be_written_is_named(path: Path, owner: Identity) -> None:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        vault = folder / "vault.db"
        shutil.copy(path, vault)
        for each, mode in ((vault, 0o600), (folder, 0o500)):
            each.chmod(mode)
            if os.geteuid() == 0:
                os.chown(each, NOBODY, NOBODY)
        with as_nobody():
            error = refusal(lambda: Vault.open(vault, owner))
            folder.chmod(0o700)
            with closing(Vault.open(vault, owner)):  # control
                pass
    assert error.code == "cannot-write"
    assert str(folder) in str(error)
    assert "ermission" in error.why or "ead-only" in error.why


def overwrite(path: Path, column: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(
            f"UPDATE keys SET {column} = randomblob(length({column})) "
            "WHERE resource = 'one'"
        )
        connection.commit()


@pytest.mark.parametrize("column", ["salt", "wrapped"])
def test_an_overwritten_vault_is_damaged_and_not_another_identitys(
    path: Path, owner: Identity, column: str
) -> None:
    overwrite(path, column)
    with opened_vault(path, owner) as vault:
        assert refusal(lambda: vault.fetch("one")).code == "vault-damaged"
        vault.fetch("two").wipe()  # control: what was left alone opens
    with opened_vault(path, create_identity("ada")) as vault:
        assert refusal(lambda: vault.fetch("one")).code == "vault-locked"
        assert refusal(lambda: vault.fetch("two")).code == "vault-locked"
