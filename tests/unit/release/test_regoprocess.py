"""One process is kept ready for policies: none sees another, and none outlasts its time."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sealift.release import regoprocess
from sealift.release.regoprocess import PolicyProcess

ENDLESS = """package policy
allow if { count(numbers.range(1, 1000000000)) > 0 }
"""


@pytest.fixture
def process() -> Iterator[PolicyProcess]:
    made = PolicyProcess(20.0)
    yield made
    made.close()


def question(text: str, **shown: object) -> bytes:
    return json.dumps({"policy": text, "data": {}, "input": shown}).encode()


def ask(process: PolicyProcess, text: str, **shown: object) -> object:
    return json.loads(process.ask(question(text, **shown)))


def test_the_process_is_kept_and_each_question_is_asked_anew(
    process: PolicyProcess,
) -> None:
    is_one = "package policy\nallow if input.n == 1\n"
    found = [ask(process, is_one, n=n) for n in (1, 2, 1)]
    kept = process._process
    assert found == [{"value": True}, {"value": None}, {"value": True}]
    assert ask(process, "package policy\nallow := input.m\n", m=3) == {"value": 3}
    assert process._process is kept is not None


def test_one_policy_leaves_nothing_for_the_next(process: PolicyProcess) -> None:
    left = "package left\nsecret := 7\n"
    ask(process, left)
    assert ask(process, "package policy\nallow := data.left.secret\n") == {
        "value": None
    }
    both = "package policy\nsecret := 7\nallow := data.policy.secret\n"
    assert ask(process, both) == {"value": 7}  # control: in one policy it is seen


def test_what_takes_everything_is_killed_and_the_next_is_answered(
    process: PolicyProcess,
) -> None:
    answer = process.ask(question(ENDLESS))
    assert not answer or "error" in json.loads(answer)
    assert ask(process, "package policy\nallow := true\n") == {"value": True}


def test_who_is_late_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that never answers, with a child that would outlast it."""
    mute = tmp_path / "mute.py"
    alive = tmp_path / "alive"
    mute.write_text(
        "import os, time\n"
        "os.fork()\n"
        f"while True: open({str(alive)!r}, 'w').close(); time.sleep(0.01)\n"
    )
    monkeypatch.setattr(regoprocess, "_WORKER", mute)
    process = PolicyProcess(1.0)
    with pytest.raises(TimeoutError):
        process.ask(b"{}")
    assert process._process is None
    alive.unlink(missing_ok=True)
    time.sleep(0.1)
    assert not alive.exists()


def test_a_killed_worker_is_started_again(process: PolicyProcess) -> None:
    """That it ended says nothing about the next question, which is answered."""
    ask(process, "package policy\nallow := true\n")
    assert process._process is not None
    process._process.kill()
    os.waitid(os.P_PID, process._process.pid, os.WEXITED | os.WNOWAIT)
    assert ask(process, "package policy\nallow := true\n") == {"value": True}


def test_many_ask_at_once(process: PolicyProcess) -> None:
    text = "package policy\nallow := input.n\n"
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda n: ask(process, text, n=n), range(16)))
    assert found == [{"value": n} for n in range(16)]
