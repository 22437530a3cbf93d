"""The page: complete, escaped, and without anything from outside."""

from __future__ import annotations

import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from sealift.demo.hostile import REPLAY
from sealift.demo.outcome import Outcome, Verdict
from sealift.demo.parties import OWNERS
from sealift.demo.progress import AttackSeen, Progress, VisitSeen
from sealift.demo.report.markup import Markup, element, join
from sealift.demo.report.page import render
from sealift.demo.tasks.digits import DIGITS
from sealift.demo.world import ONE_BUFFER, Travel

BROWSERS = ("chromium", "google-chrome", "chromium-headless-shell")
CHROMIUM = next(filter(None, map(shutil.which, BROWSERS)), None)


def outcome(
    folder: Path, *, holder: str = "north", travel: Travel = ONE_BUFFER
) -> Outcome:
    progress = Progress(6)
    for number in range(1, 7):
        began = float(number)
        progress.visits.append(
            VisitSeen(
                visit=f"{number:032x}",
                number=number,
                epoch=0,
                holder=OWNERS[number % 3],
                purpose="train",
                rows=9,
                began_s=began,
                ended_s=began + 0.8,
                marks=[("handshake", began), ("load", began + 0.1)],
                outcome="verified" if number > 1 else "failed",
                reason="" if number > 1 else "frame-order",
                phases_s={"load": 0.1},
                metrics={"loss": 2.0 / number},
                sealed_bytes=2_000_000,
            )
        )
    progress.attacks.append(AttackSeen(REPLAY, holder, "a", "frame-order", "", 7))
    return Outcome(
        task=DIGITS,
        travel=travel,
        plan="travel",
        level="development",
        together={"accuracy": 0.96, "loss": 0.1},
        alone={owner: {"accuracy": 0.5, "loss": 2.0} for owner in OWNERS},
        weights="sha256:ab",
        progress=progress,
        verdict=Verdict(failures=["logs: <none>"]),
        world_s=1.0,
        roles_up_s=2.0,
        seconds=3.0,
        began_s=0.0,
        folder=folder,
        report=folder / "report.html",
        model=folder / "model.safetensors",
    )


class Balance(HTMLParser):
    """Every element is closed where it must be."""

    VOID = frozenset({"meta", "br", "hr", "col"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_well_formed(tmp_path: Path) -> None:
    balance = Balance()
    balance.feed(render(outcome(tmp_path)))
    assert balance.open == []
    assert balance.seen.count("svg") > 3
    assert "script" not in balance.seen


def test_nothing_comes_from_outside(tmp_path: Path) -> None:
    page = render(outcome(tmp_path))
    assert "default-src &#x27;none&#x27;" in page
    assert not re.search(r"https?:|//[a-z]|src=|href=|url\(|@import", page)


def test_it_says_development_and_what_failed(tmp_path: Path) -> None:
    page = render(outcome(tmp_path))
    assert "DEVELOPMENT" in page
    assert "nobody is kept out" in page
    assert "✗ failed" in page


def test_what_others_wrote_is_escaped(tmp_path: Path) -> None:
    page = render(outcome(tmp_path, holder='<img src="x">'))
    assert "&lt;img" in page
    assert "<img" not in page
    assert "logs: &lt;none&gt;" in page


def test_markup_escapes_text_and_attributes_once() -> None:
    inner = element("b", "a < b", title='"x"')
    assert inner == '<b title="&quot;x&quot;">a &lt; b</b>'
    assert join(inner, "&") == inner + "&amp;"
    assert element("p", Markup("<i></i>")) == "<p><i></i></p>"


@pytest.mark.skipif(CHROMIUM is None, reason="this machine lacks Chromium")
def test_a_browser_shows_it_without_network(tmp_path: Path) -> None:
    shown = outcome(tmp_path)
    shown.report.write_text(render(shown), encoding="utf-8")
    log = browse(shown.report, tmp_path)
    assert "Three owners, one model" in log.stdout
    assert "CONSOLE" not in log.stderr


@pytest.mark.skipif(CHROMIUM is None, reason="this machine lacks Chromium")
def test_the_browsers_complaints_are_seen(tmp_path: Path) -> None:
    """Control: what the policy forbids leaves a line in the browser's log."""
    shown = outcome(tmp_path)
    page = render(shown).replace("</main>", "<script>1</script></main>")
    shown.report.write_text(page, encoding="utf-8")
    assert "CONSOLE" in browse(shown.report, tmp_path).stderr


def browse(page: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    assert CHROMIUM is not None
    return subprocess.run(
        [
            CHROMIUM,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--enable-logging=stderr",
            "--host-resolver-rules=MAP * ~NOTFOUND",
            f"--user-data-dir={folder / 'profile'}",
            "--dump-dom",
            page.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
    )
