"""The doors to an owner's vault and log: what goes in, and one broker at a time."""

from __future__ import annotations

import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from sealift.crypto.identity import create_identity
from sealift.crypto.keys import SecretKey
from sealift.errors import UnavailableError, UsageError
from sealift.release.broker import stores as opening
from sealift.release.broker.server import Broker
from sealift.release.broker.stores import (
    destroy_keys,
    keep_keys,
    opened_broker,
    opened_vault,
)
from tests.sim.owners import NOW_S
from tests.worlds.consortium import Consortium, make_consortium

HOLD = """
import sys
from pathlib import Path
from sealift.release.broker.stores import _alone
with _alone(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def stores(folder: Path, consortium: Consortium) -> tuple[Path, Path]:
    vault = folder / "vault.db"
    keys = {n: k for n, k in consortium.keys.items() if n.startswith("ada-")}
    keep_keys(vault, consortium.identities["ada"], keys)
    return vault, folder / "audit.db"


def opened(
    paths: tuple[Path, Path], consortium: Consortium
) -> AbstractContextManager[Broker]:
    verified = consortium.verified()
    identity = consortium.identities["ada"]
    return opened_broker(*paths, identity, lambda ledger: verified, clock=lambda: NOW_S)


def test_a_broker_and_its_end(tmp_path: Path) -> None:
    consortium = make_consortium()
    paths = stores(tmp_path, consortium)
    for entries in (1, 2):  # made first, then opened: both say what is served
        with opened(paths, consortium) as broker:
            assert broker.head().body.size == entries


@pytest.mark.distributed
@pytest.mark.parametrize("which", [0, 1])
def test_a_second_broker_is_refused_and_named_the_first(
    tmp_path: Path, which: int
) -> None:
    """By a process that holds the vault, or the log alone."""
    consortium = make_consortium()
    paths = stores(tmp_path, consortium)
    command = [sys.executable, "-c", HOLD, str(paths[which])]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as first:  # type: ignore[call-overload]
        assert first.stdout.readline() == b"held\n"
        with pytest.raises(UnavailableError) as caught, opened(paths, consortium):
            pass
        assert caught.value.code == "broker-running"
        assert str(paths[which]) in str(caught.value)
        assert f"{first.pid}" in caught.value.why
        first.kill()
    with opened(paths, consortium):  # control: the lock died with its process
        pass


def test_a_link_to_a_vault_is_the_same_vault(tmp_path: Path) -> None:
    consortium = make_consortium()
    paths = stores(tmp_path, consortium)
    with opened(paths, consortium) as first:
        (tmp_path / "elsewhere").mkdir()
        links = [tmp_path / "elsewhere" / each.name for each in paths]
        for link, path in zip(links, paths, strict=True):
            link.symlink_to(path)
        with (
            pytest.raises(UnavailableError) as caught,
            opened((links[0], links[1]), consortium),
        ):
            pass
        assert caught.value.code == "broker-running"
        assert first.head().body.size == 1


def test_control_without_the_lock_both_would_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    consortium = make_consortium()
    paths = stores(tmp_path, consortium)
    with opened(paths, consortium) as first:
        with pytest.raises(UnavailableError), opened(paths, consortium):
            pass
        monkeypatch.setattr(opening.fcntl, "flock", lambda *_: None)
        with opened(paths, consortium) as second:
            assert second.head().body.size == first.head().body.size


def test_keys_are_kept_and_destroyed(tmp_path: Path) -> None:
    owner, path = create_identity("ada"), tmp_path / "vault.db"
    kept = keep_keys(path, owner, {"one": SecretKey.generate()})
    with pytest.raises(UsageError):
        keep_keys(path, owner, {"one": SecretKey.generate()})
    keep_keys(path, owner, {"two": SecretKey.generate()})
    assert list(destroy_keys(path, owner, ["two", "three"])) == ["two"]
    with opened_vault(path, owner) as vault:
        assert vault.resources() == kept


def test_a_link_in_the_place_of_the_lock_is_not_followed(tmp_path: Path) -> None:
    """Whoever may write beside the vault would else have a file of its owner emptied."""
    consortium = make_consortium()
    paths = stores(tmp_path, consortium)
    other = tmp_path / "other"
    other.write_text("precious")
    Path(f"{paths[0]}{opening.LOCK_SUFFIX}").symlink_to(other)
    with pytest.raises(UnavailableError) as caught, opened(paths, consortium):
        pass
    assert (caught.value.code, other.read_text()) == ("cannot-write", "precious")
