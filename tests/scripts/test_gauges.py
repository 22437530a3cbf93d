"""The project's own checks notice what they are there for."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run_script(folder: Path, script: str, source: str, name: str = "broker") -> int:
    """Run a script of `scripts/` in a project of one source file."""
    (folder / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / script, folder / "scripts")
    room = folder / "src" / "sealift" / "release"
    room.mkdir(parents=True)
    (room / f"{name}.py").write_text(source)
    command = [sys.executable, folder / "scripts" / script]
    return subprocess.run(command, capture_output=True, check=False).returncode


@pytest.mark.parametrize(
    ("source", "status"),
    [
        ("x = 1\n" * 800, 0),
        ("x = 1\n" * 801, 1),
        ("def f(a, b, c, d, e, *, g): ...\n", 0),
        ("def f(a, b, c, d, e, g): ...\n", 1),
    ],
    ids=["longest file", "file too long", "five positional", "six positional"],
)
def test_sizes(tmp_path: Path, source: str, status: int) -> None:
    assert run_script(tmp_path, "sizes.py", source) == status


@pytest.mark.parametrize(
    ("source", "name", "status"),
    [
        ("def release(): ...\n", "broker", 0),
        ("def rehandle(): ...\n", "broker", 0),
        ("", "utils", 1),
        ("class KeyManager: ...\n", "broker", 1),
        ("def handle_key(): ...\n", "broker", 1),
        ("def tmp(): ...\n", "broker", 1),
    ],
)
def test_words(tmp_path: Path, source: str, name: str, status: int) -> None:
    assert run_script(tmp_path, "words.py", source, name) == status


REACH_OUT = """
import socket
with socket.create_server(("127.0.0.1", 0)) as server:
    socket.create_connection(server.getsockname()).close()
print([name for _, name in socket.if_nameindex()])
"""


def test_offline_leaves_loopback_only() -> None:
    command = [
        sys.executable,
        ROOT / "scripts/offline.py",
        sys.executable,
        "-c",
        REACH_OUT,
    ]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert run.stdout == "['lo']\n" or "the network stays on" in run.stderr
