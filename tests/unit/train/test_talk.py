"""What roles tell people: sentences, and what they wait for when nothing happens."""

from __future__ import annotations

import io
import os
import pty
import re
import time
from pathlib import Path
from typing import Any

import pytest

from sealift.events import Event
from sealift.train.job import sentences
from sealift.train.job.sentences import sentence
from sealift.train.job.talk import Talk, TalkativeSink

SOURCE = Path(sentences.__file__).parents[2]
PAGE = Path(__file__).parents[3] / "docs/reference/events.md"
EMITTED = re.compile(r'(?:emit\(\s*[\w.]*sink,|\b_?tell\()\s*"([a-z]+\.[a-z-]+)"')


def emitted() -> set[str]:
    """Every kind in the source, but those of the demo's own processes."""
    found = set[str]()
    for path in SOURCE.rglob("*.py"):
        if "demo" not in path.relative_to(SOURCE).parts:
            text = path.read_text("utf-8")
            found.update(EMITTED.findall(text))
    return found


def test_every_event_stands_in_the_reference() -> None:
    page, kinds = PAGE.read_text("utf-8"), emitted()
    assert len(kinds) > 50  # the search finds what there is
    missing = {kind for kind in kinds if f"`{kind}`" not in page}
    assert missing <= {"data.progress", "cuda.opened"}  # of no job


def test_no_sentence_is_about_an_event_that_nobody_emits() -> None:
    told = {*sentences.QUIET, *sentences._SAID, *sentences._MADE}
    assert told <= emitted()


@pytest.mark.parametrize(
    ("kind", "fields", "parts"),
    [
        ("holder.receipt", {"name": "a.json", "rows": 2}, ["a.json"]),
        ("owner.departed", {"owner": "ada", "line": "ada left"}, ["ada left"]),
        ("host.enrolled", {"owner": "ada"}, ["ada"]),
        ("host.enrolled", {"peer": "a-0", "owner": "b"}, ["a-0"]),
        ("a.new-one", {"s": 0.12345, "empty": ""}, ["a.new-one s=0.1235"]),
        ("serve.ready", {"other": 1}, ["serve.ready other=1"]),
        (
            "holder.measured",
            {"rows": 9, "resource": "t", "metric.loss": 0.5},
            ["9 rows of t", ", loss 0.5"],
        ),
    ],
)
def test_an_event_in_words(kind: str, fields: dict[str, Any], parts: list[str]) -> None:
    line = sentence(kind, fields)
    assert all(part in line for part in parts)


def test_a_limit_that_stops_measuring_says_nothing_of_the_model() -> None:
    said = {
        purpose: sentence("job.limited", {"purpose": purpose, "epoch": 1, "line": "l"})
        for purpose in ("train", "heldout")
    }
    assert "model" in said["train"]
    assert "model" not in said["heldout"]
    assert all("l; " in each for each in said.values())


def test_an_event_for_programs_alone_has_no_sentence() -> None:
    assert sentence("visit.offered", {"holder": "north"}) == ""


def test_it_says_what_it_waits_for_and_ever_more_rarely() -> None:
    stream = io.StringIO()
    talk = Talk(stream, silence_s=0.02)
    talk.wait_for("east")
    lines = _lines(stream, 3)
    assert all(line.startswith("sealift: waiting for east (") for line in lines)
    talk.wait_for("")
    said = stream.getvalue()
    time.sleep(0.1)
    assert stream.getvalue() == said


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_stream_that_was_closed_ends_the_reminders() -> None:
    stream = io.StringIO()
    talk = Talk(stream, silence_s=0.02)
    talk.wait_for("east")
    _lines(stream, 1)
    stream.close()
    assert talk._thread is not None
    talk._thread.join(30)
    assert not talk._thread.is_alive()


def test_who_is_missing_is_named() -> None:
    stream = io.StringIO()
    sink = TalkativeSink(Talk(stream, silence_s=0.02))
    missing = "accelerator-0, north"
    listening: dict[str, Any] = {"host": "h", "port": 1, "awaits": missing}
    sink(Event("orchestrator.listening", listening))
    assert "waiting for accelerator-0, north (" in _lines(stream, 2)[1]
    sink(Event("role.arrived", {"role": "accelerator", "name": "accelerator-0"}))
    lines = _lines(stream, 2 + len(stream.getvalue().splitlines()))
    assert "waiting for north (" in lines[-1]


def test_ranks_are_called_by_their_owners() -> None:
    stream = io.StringIO()
    people = {"accelerator-0": "rank 0 (north)", "accelerator-1": "rank 1 (east)"}
    sink = TalkativeSink(Talk(stream, silence_s=0.02), people)
    listening: dict[str, Any] = {"host": "h", "port": 1}
    listening["awaits"] = "accelerator-0, accelerator-1"
    sink(Event("orchestrator.listening", listening))
    sink(Event("role.arrived", {"role": "accelerator", "name": "accelerator-0"}))
    granted = {"resource": "east-train", "peer": "accelerator-1"}
    sink(Event("release.granted", granted))
    said = stream.getvalue()
    assert "for rank 0 (north), rank 1 (east)" in said
    assert "sealift: rank 0 (north) connected" in said
    assert "released to rank 1 (east)" in said
    assert "accelerator-" not in said


def test_on_a_terminal_the_count_stays_in_its_line() -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as terminal:
        talk = Talk(terminal, silence_s=0.02)
        talk.wait_for("a\x1b[31m visit")
        shown = os.read(ours, 200)
        assert shown.endswith(b"(0 s)\x1b[K\r")
        assert rb"a\x1b[31m visit" in shown
        talk.wait_for("")
        talk.say("done")
        assert os.read(ours, 200).endswith(b"\x1b[Ksealift: done\r\n")
    os.close(ours)


def _lines(stream: io.StringIO, count: int) -> list[str]:
    deadline = time.monotonic() + 300
    while len(stream.getvalue().splitlines()) < count:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return stream.getvalue().splitlines()


def test_text_of_others_cannot_pad_itself_into_another_line() -> None:
    stream = io.StringIO()
    Talk(stream).say("a visit failed:" + " " * 70 + "verified\x1b[2K\r\n  all is well")
    assert (
        stream.getvalue() == "sealift: a visit failed: verified\\x1b[2K all is well\n"
    )
