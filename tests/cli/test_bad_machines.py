"""Machines that something is wrong with: one line each, and nothing is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sealift.meet.state import MeetingState

KEY = ("key", "new", "north", "--passphrase-file", "../secret")
NAMESPACES = os.geteuid() == 0 and (
    subprocess.run(
        ["unshare", "-m", "true"], capture_output=True, check=False
    ).returncode
    == 0
)
in_namespaces = pytest.mark.skipif(
    not NAMESPACES, reason="root alone mounts a small disk"
)


def sealift(
    folder: Path, *words: str, before: str = "", **environment: str
) -> tuple[int, str]:
    """One command in a mount namespace of its own, after ``before``."""
    command = [sys.executable, "-P", "-m", "sealift", *words]
    if before:
        command = [
            "unshare",
            "-m",
            "sh",
            "-c",
            f'{before}; cd . && exec "$@"',
            "sh",
            *command,
        ]
    ran = subprocess.run(
        command, cwd=folder, env={**os.environ, **environment}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return ran.returncode, ran.stdout + ran.stderr


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text("one two three\n")
    made = tmp_path / "place"
    made.mkdir()
    return made


def small_disk(left_kib: int) -> str:
    """A disk on which so much is left."""
    return (
        f"mount -t tmpfs -o size={left_kib + 32}k tmpfs $PWD && cd $PWD && "
        "dd if=/dev/zero of=other bs=1k count=32 2>/dev/null"
    )


@in_namespaces
@pytest.mark.parametrize("left_kib", [0, 16])
def test_a_key_on_a_full_disk(place: Path, left_kib: int) -> None:
    """It is there whole, or one line says why it is not."""
    words = (*KEY[:3], "--passphrase-file", str(place.parent / "secret"))
    code, said = sealift(place, *words, before=small_disk(left_kib))
    if left_kib:
        assert code == 0, said
        return
    assert code == 3
    assert said.rstrip().endswith("[disk-full]")
    assert said.count("\n") == 1


@in_namespaces
def test_a_meetings_book_does_not_fit_on_a_full_disk(place: Path) -> None:
    """16 KiB are left: no half of a book stays, and a later start makes a whole one."""
    program = (
        "import sys; from pathlib import Path; from sealift.cli.main import run_guarded; "
        "from sealift.meet.state import MeetingState; "
        "from tests.cli.test_bad_machines import make_book; "
        "sys.exit(run_guarded(lambda: make_book(Path('meeting.db'))))"
    )
    root = Path(__file__).resolve().parents[2]
    script = f'{small_disk(16)}; "$@"; code=$?; ls meeting.db; exit $code'
    ran = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, "sh", sys.executable, "-c", program],
        cwd=place, env={**os.environ, "PYTHONPATH": f"{root}:{root / 'src'}"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 3, ran.stderr
    assert "[disk-full]" in ran.stderr
    assert "meeting.db" not in ran.stdout


def make_book(path: Path) -> int:
    """A meeting of two parties."""
    from sealift.crypto.identity import create_identity
    from sealift.meet.declaration import invitations_for

    invited = invitations_for(
        create_identity("host"), ["a", "b"], address="127.0.0.1:1", days=1
    )
    MeetingState.create(path, invited).close()
    return 0


def test_a_home_that_cannot_be_written(place: Path) -> None:
    code, said = sealift(place, *KEY, HOME="/proc/1", XDG_STATE_HOME="/proc/1")
    assert code == 0, said


def test_key_files_that_others_can_open(place: Path) -> None:
    """It is said, with the command that closes them; the command goes on."""
    words = ("key", "backup", "north.key", "--passphrase-file", "../secret", "-o")
    (place.parent / "secret").chmod(0o600)
    assert sealift(place, *KEY)[0] == 0
    code, said = sealift(place, *words, "first")
    assert code == 0
    assert "every user" not in said
    (place / "north.key").chmod(0o644)
    (place.parent / "secret").chmod(0o602)
    code, said = sealift(place, *words, "second")
    assert code == 0
    assert said.count("every user of this machine can open") == 2
    assert "chmod go= north.key" in said
    assert "chmod go= ../secret" in said


@in_namespaces
def test_a_folder_that_cannot_be_written(place: Path) -> None:
    before = "mount --bind $PWD $PWD && mount -o remount,bind,ro $PWD && cd $PWD"
    code, said = sealift(place, *KEY, before=before)
    assert code == 3
    assert said.rstrip().endswith("[cannot-write]")
    assert said.count("\n") == 1


@in_namespaces
def test_a_hosts_folder_that_cannot_be_written(place: Path) -> None:
    """It is said before the recipe is tried, which takes longer."""
    recipe = place / "wards"
    recipe.mkdir()
    (recipe / "recipe.py").write_text("raise RuntimeError")
    schema = '[[fields]]\nname = "age"\ndtype = "float32"\n'
    (recipe / "schema.toml").write_text(schema)
    before = "mount --bind $PWD $PWD && mount -o remount,bind,ro $PWD && cd $PWD"
    code, said = sealift(place, "host", "wards", "--invite", "a", before=before)
    assert code == 3, said
    assert said.rstrip().endswith("[cannot-write]")
    assert said.count("\n") == 1


@in_namespaces
def test_a_machine_without_the_internets_old_addresses(place: Path) -> None:
    """Nothing but IPv6, in a network namespace: a port is listened at and dialled."""
    program = (
        "import socket; from sealift.channel.transport.tcp import TcpListener, connect_socket; "
        "listener = TcpListener('::1', 0); connect_socket(*listener.address[:2], timeout_s=60).close(); "
        "listener.close(); print('met')"
    )
    network = "ip link set lo up && ip -4 address flush dev lo"
    ran = subprocess.run(
        ["unshare", "-n", "sh", "-c", f'{network} && exec "$@"', "sh", sys.executable, "-c", program],
        cwd=place, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.stdout == "met\n", ran.stderr
