"""Stopping: one signal is enough, whatever the main thread is doing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import sealift

SOURCE = str(Path(sealift.__file__).parent.parent)
STOPPED = 128 + signal.SIGTERM
START = """
import sys, time, hashlib
from sealift.cli import signals
signals.GRACE_S = {grace_s}
signals.install_stop_signals()
signals.on_second_signal(lambda: print("last act", flush=True))
"""
SWALLOWS = """
print("ready", flush=True)
while True:
    try:
        time.sleep(60)
    except BaseException:
        print("swallowed", flush=True)
"""
COMPUTES = """
print("ready", flush=True)
hashlib.pbkdf2_hmac("sha256", b"", b"", 500_000_000)
"""
STARTS = """
with signals.stop_postponed():
    print("ready", flush=True)
    time.sleep(0.5)
    print("started", flush=True)
print("never", flush=True)
"""


def start(body: str, grace_s: float = 0.3) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", START.format(grace_s=grace_s) + body],
        env={**os.environ, "PYTHONPATH": SOURCE},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.2)  # until it is where it says
    return process


@pytest.mark.parametrize("body", [SWALLOWS, COMPUTES])
def test_a_main_thread_that_does_not_end(body: str) -> None:
    process = start(body)
    process.terminate()
    out, _ = process.communicate(timeout=300)
    assert process.returncode == STOPPED
    assert out.splitlines()[-1] == "last act"


def test_a_second_signal_does_not_wait() -> None:
    process = start(COMPUTES, grace_s=600.0)
    process.terminate()
    time.sleep(0.1)  # two of the same kind that are pending are one
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == STOPPED
    assert out == "last act\n"


def test_what_is_being_started_is_started_whole() -> None:
    process = start(STARTS, grace_s=20.0)
    process.terminate()
    out, _ = process.communicate(timeout=300)
    assert out == "started\n"
    assert process.returncode == 1  # StopRequested, which nobody caught here


def test_a_child_follows_its_parent() -> None:
    """The parent is killed and can do nothing about its child."""
    child = "from sealift.cli import signals; signals.follow_parent(); " + (
        "import time; time.sleep(60)"
    )
    parent = (
        "import os, subprocess, sys\n"
        "from sealift.cli.signals import followed\n"
        f"child = subprocess.Popen([sys.executable, '-c', {child!r}],"
        " env={**os.environ, **followed()})\n"
        "print(child.pid, flush=True)\n"
        "child.wait()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", parent],
        env={**os.environ, "PYTHONPATH": SOURCE},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 300
    while running(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not running(pid)


def running(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
