"""P4: files, logs and traffic of a broker hold no data key in any form."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from sealift.crypto.keys import TOKEN, SecretKey
from sealift.release.vault.file import VaultFile
from sealift.release.vault.vault import Vault
from tests.attacks.scenarios.world import ADA, BrokerWorld, train


def forms(key: SecretKey) -> tuple[bytes, ...]:
    raw = key.reveal(TOKEN)[:32]
    return (
        raw,
        raw[::-1],
        raw.hex().encode(),
        base64.b64encode(raw).rstrip(b"="),
        base64.urlsafe_b64encode(raw).rstrip(b"="),
        *(raw[place : place + 12] for place in range(0, 20, 4)),
    )


def holds(folder: Path, key: SecretKey, frames: list[bytes]) -> bool:
    places = [path.read_bytes() for path in folder.rglob("*.db*")] + frames
    assert places
    return any(form in place for form in forms(key) for place in places)


def test_nothing_holds_the_key(tmp_path: Path) -> None:
    with BrokerWorld(tmp_path / "o") as broker:
        assert broker.ask() == ""
        assert len(broker.box.crossed) > 8
        assert not holds(broker.folder, broker.key, broker.box.crossed)
    assert not holds(tmp_path / "o", broker.key, [])  # closed: nothing left behind


def test_nor_what_wraps_it(tmp_path: Path) -> None:
    """The owner's seed: from it the wrapping keys are derived."""
    with BrokerWorld(tmp_path / "o") as broker:
        broker.ask()
        assert not holds(broker.folder, broker.identity._seed, broker.box.crossed)


def test_mutant_that_does_not_wrap_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with BrokerWorld(tmp_path / "o") as broker:
        monkeypatch.setattr(
            VaultFile,
            "wrap",
            lambda file, key, context: (bytes(32), key.reveal(TOKEN)),
        )
        plain = Vault.create(broker.folder / "plain.db", broker.identity)
        plain.store(train(ADA), broker.key)
        plain.close()
        assert holds(broker.folder, broker.key, [])


def test_mutant_that_sends_it_plain_is_found(tmp_path: Path) -> None:
    with BrokerWorld(tmp_path / "o") as broker:
        broker.ask()
        raw = broker.key.reveal(TOKEN)
        assert holds(broker.folder, broker.key, [*broker.box.crossed, b"x" + raw])
