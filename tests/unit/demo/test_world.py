"""The demo's folder: claimed by one demo at a time, cleaned of what only it made."""

from __future__ import annotations

from pathlib import Path

import pytest

from sealift.demo.folder import MARK, claimed, remove_secrets
from sealift.demo.job import make_world
from sealift.demo.tasks import DIGITS
from sealift.errors import UnavailableError, UsageError


def test_one_demo_at_a_time(tmp_path: Path) -> None:
    with (
        claimed(tmp_path / "world"),
        pytest.raises(UsageError, match="another demo is running"),
        claimed(tmp_path / "world"),
    ):
        pass
    with claimed(tmp_path / "world"):
        pass


def test_secrets_of_others_stay(tmp_path: Path) -> None:
    (tmp_path / "tables").mkdir()
    remove_secrets(tmp_path)
    assert (tmp_path / "tables").exists()
    (tmp_path / MARK).touch()
    remove_secrets(tmp_path)
    assert not (tmp_path / "tables").exists()


def test_what_the_disk_refuses_is_one_line(tmp_path: Path) -> None:
    (tmp_path / MARK).mkdir()  # a place where the mark cannot be made
    (tmp_path / "file").touch()
    with pytest.raises(UsageError):
        make_world(tmp_path, DIGITS)
    with pytest.raises(UnavailableError), claimed(tmp_path / "file" / "world"):
        pass
