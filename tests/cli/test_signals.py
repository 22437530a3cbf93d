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

pytestmark = pytest.mark.distributed

SOURCE = str(Path(sealift.__file__).parent.parent)
STOPPED = 128 + signal.SIGTERM
START = """
import sys, time, hashlib
from sealift.train.job import signals
signals.GRACE_S = {grace_s}
signals.install_stop_signals()
signals.on_second_signal(lambda: print("last act", flush=True))
"""
SWALLOWS = """
words = ["ready"]
while True:
    try:
        if words:
            print(words.pop(), flush=True)
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
    while not signals._State.postponed:
        time.sleep(0.01)
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
    return process


def wait_until_it_computes(process: subprocess.Popen[str]) -> None:
    """Until it has computed for a while: it does nothing else once it is ready."""
    began_s = processor_s(process.pid)
    while processor_s(process.pid) < began_s + 0.1:
        time.sleep(0.01)


def processor_s(pid: int) -> float:
    """Seconds that a process has had a processor: proc(5), fields 14 and 15."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("body", [SWALLOWS, COMPUTES])
def test_a_main_thread_that_does_not_end(body: str) -> None:
    process = start(body)
    if body == COMPUTES:
        wait_until_it_computes(process)
    process.terminate()
    out, _ = process.communicate(timeout=300)
    assert process.returncode == STOPPED
    assert out.splitlines()[-1] == "last act"


def test_a_second_signal_does_not_wait() -> None:
    process = start(COMPUTES, grace_s=600.0)
    wait_until_it_computes(process)
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


FOLLOWS = """
import time
from sealift.train.job import signals
signals.install_stop_signals()
signals.follow_parent()
signals.on_second_signal(lambda: print("scrubbed", flush=True))
signals.on_second_signal(lambda: print("asked children", flush=True), ends_children=True)
try:
    print("ready", flush=True)
    time.sleep(60)
except signals.StopRequested:
    print("asked", flush=True)
"""
PARENT = """
import os, subprocess, sys, threading, time
from sealift.train.job.signals import followed
for _ in range(200):  # they end one after another, while the child hears of it
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
subprocess.run([sys.executable, "-c", sys.argv[1]], env={**os.environ, **followed()})
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_child_follows_its_parent(number: signal.Signals) -> None:
    """The parent is killed and tells its child nothing; nor is the child asked to stop."""
    process = subprocess.Popen(
        [sys.executable, "-c", PARENT, FOLLOWS],
        env={**os.environ, "PYTHONPATH": SOURCE},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    out, _ = process.communicate(timeout=300)  # until the child has ended as well
    assert out == "scrubbed\n"


THREADED = """
import os, subprocess, sys, threading
from sealift.train.job.signals import followed
made = []
def start():
    command = [sys.executable, "-c", sys.argv[1]]
    made.append(subprocess.Popen(command, env={**os.environ, **followed()}))
    input()
thread = threading.Thread(target=start)
thread.start()
thread.join()
input()
made[0].terminate()
"""


def test_a_child_survives_the_thread_that_started_it() -> None:
    impatient = "from sealift.train.job import signals; signals.ENDING_S = 0.1\n"
    process = subprocess.Popen(
        [sys.executable, "-c", THREADED, impatient + FOLLOWS],
        env={**os.environ, "PYTHONPATH": SOURCE},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.stdin.write("the thread ends\n")
    process.stdin.flush()
    time.sleep(0.5)
    out, _ = process.communicate("now\n", timeout=300)
    assert out == "asked\n"  # and nothing before
