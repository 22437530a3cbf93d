"""A run watched in a real browser, from its beginning to its receipt."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sealift.events import discard, emit
from sealift.train.job.journal import Journal, journal_of
from tests.sim.browsing import Browser, browser

pytestmark = [pytest.mark.distributed, pytest.mark.chromium]
TAB, ENTER = 9, 13


@contextmanager
def watched(folder: Path, *words: str) -> Iterator[Browser]:
    """A command that shows a page, and a browser that was let in."""
    command = [sys.executable, "-P", "-m", "sealift", *words]
    process = subprocess.Popen(
        command,
        cwd=folder,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    assert process.stderr is not None
    try:
        with browser(folder) as tab:
            for line in process.stderr:
                found = re.search(
                    r"page is at (http\S+); the code is ([a-z0-9-]+)", line
                )
                if found is not None:
                    break
            else:
                raise AssertionError("no page")
            enter(tab, *found.groups())
            yield tab
    finally:
        process.terminate()
        with process:  # closes its pipe, too
            process.stderr.read()


def enter(tab: Browser, address: str, code: str) -> None:
    """As a person does: type the code, press Enter."""
    tab.open(address)
    tab.call("Input.insertText", text=code)  # the field has the focus
    tab.press("Enter", ENTER)
    tab.until("document.getElementById('status') !== null")
    assert code not in str(tab.run("location.href"))


def journal(folder: Path) -> Journal:
    made = Journal(journal_of(folder, "digits"), "orchestrator", discard, lambda: 1e9)
    made.begin(job="digits", plan="travel", agreement="sha256:0")
    return made


def ready(told: Journal, position: int = 0) -> None:
    emit(
        told, "job.ready", level="development", keys=6, position=position,
        buffer_bytes=640, why="", sandbox="none",
    )  # fmt: skip


def test_the_page_changes_as_the_run_goes_on(tmp_path: Path) -> None:
    told = journal(tmp_path)
    with watched(tmp_path, "view") as tab:
        tab.until("document.body.innerText.includes('Waiting for the parties')")
        emit(told, "role.arrived", role="holder", name="north")
        tab.until("document.body.innerText.includes('Connected: north')")
        ready(told)
        tab.until("document.querySelector('.banner') !== null")
        emit(told, "release.refused", peer="x", rule="level-refused")
        tab.until("document.getElementById('keys').innerText.includes('level-refused')")
        told.end("finished")
        tab.until("document.body.innerText.includes('Finished')")
        own = tab.run("location.origin")
        assert all(each.startswith(own) for each in tab.requested())
        assert tab.complaints() == []


def test_what_others_wrote_runs_nothing(tmp_path: Path) -> None:
    told = journal(tmp_path)
    hostile = "<img src=http://evil.example/x onerror='window.hit=1'><script>window.hit=1</script>"
    with watched(tmp_path, "view") as tab:
        emit(told, "role.refused", role="holder", name=hostile, line=hostile)
        tab.until("document.getElementById('trouble').innerText.includes('onerror')")
        assert tab.run("window.hit === undefined")
        assert not [each for each in tab.requested() if "evil" in each]


def test_a_keyboard_is_enough_and_what_was_unfolded_stays(tmp_path: Path) -> None:
    told = journal(tmp_path)
    ready(told)
    names = {"metric.loss": 0.5, "metric.alone.north.loss": 0.7}
    for epoch in range(2):
        emit(
            told, "visit.ended", visit=f"{epoch:032x}", number=epoch, position=epoch,
            epoch=epoch, holder="north", resource="north-train", purpose="train",
            first_row=0, rows=9, outcome="verified", reason="", line="", **names,
        )  # fmt: skip
    with watched(tmp_path, "view") as tab:
        tab.until("document.querySelector('details') !== null")
        for _ in range(8):
            tab.press("Tab", TAB)
            if tab.run("document.activeElement.tagName") == "SUMMARY":
                break
        tab.press("Enter", ENTER)
        tab.until("document.querySelector('details').open")
        emit(
            told, "visit.ended", visit=f"{7:032x}", number=7, position=7, epoch=2,
            holder="north", resource="north-train", purpose="train", first_row=0, rows=9,
            outcome="verified", reason="", line="", **names,
        )  # fmt: skip
        tab.until("document.getElementById('status').innerText.includes('3')")
        assert tab.run("document.querySelector('details').open")
        for width in (390, 1200):
            tab.picture(tmp_path / f"{width}.png", width=width)
            assert tab.run("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.long
def test_a_whole_run_to_its_receipt(tmp_path: Path) -> None:
    with watched(tmp_path, "demo", "--view") as tab:
        tab.until("document.body.innerText.includes('Training:')")
        tab.until("document.getElementById('inside').querySelector('td') !== null")
        tab.until("document.body.innerText.includes('Finished')", 120.0)
        tab.until(
            "document.getElementById('papers').innerText.includes('✓ consistent')"
        )
        text = tab.text()
        for said in (
            "accuracy, held-out rows",
            "comparisons passed",
            "sent, encrypted",
        ):
            assert said in text
        assert "frame-order" in text  # what was refused, and why
        assert tab.complaints() == []
