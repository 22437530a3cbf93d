"""Files read within a limit: memory follows the file, not the limit."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from sealift.errors import MalformedError, UnavailableError
from sealift.release.files import STEP_BYTES, make_folder, read_whole


def test_a_limit_beyond_all_memory_costs_nothing(tmp_path: Path) -> None:
    path = tmp_path / "small"
    path.write_bytes(b"some bytes")
    assert read_whole(path, 1 << 50) == b"some bytes"


def test_the_limit_is_kept_to_the_byte(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(100))
    assert len(read_whole(path, 100)) == 100
    with pytest.raises(MalformedError):
        read_whole(path, 99)


def test_a_pipe_has_no_size(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    content = os.urandom(3 * STEP_BYTES + 7)
    threading.Thread(target=path.write_bytes, args=(content,), daemon=True).start()
    assert read_whole(path, len(content)) == content


def test_a_folder_that_cannot_be_written_is_found_at_once(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError) as caught:
        make_folder(Path("/proc/self"))  # is there, and takes no file of anybody
    assert caught.value.code == "cannot-write"
    make_folder(tmp_path / "a" / "b")  # control, and nothing is left of the trial
    assert os.listdir(tmp_path / "a" / "b") == []
