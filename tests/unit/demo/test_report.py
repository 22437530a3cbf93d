"""The page: complete, escaped, and without anything from outside."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import pytest

from sealift.crypto.identity import create_identity
from sealift.demo.folder import OWNERS, World
from sealift.demo.holders import REPLAY
from sealift.demo.job import ONE_BUFFER, Travel
from sealift.demo.outcome import DemoVerdict, Outcome
from sealift.demo.progress import AttackSeen, CheckpointSeen, Progress, VisitSeen
from sealift.demo.report import render
from sealift.demo.tasks import DIGITS, Sample
from sealift.demo.views import level_words, say_banner
from sealift.release.agreement import Agreement
from sealift.release.agreement.terms import Party, ServersRule
from sealift.train.loop.statistics import Statistic
from sealift.view.markup import Markup, element, join
from sealift.view.report import SeenRun, for_owners, run_page, who_gave_what
from tests.sim.browser import CHROMIUM
from tests.worlds.consortium import OUTPUT, make_consortium


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
        verdict=DemoVerdict(failures=["logs: <none>"]),
        world=World(folder),
        world_s=1.0,
        roles_up_s=2.0,
        seconds=3.0,
    )


def agreement() -> Agreement:
    rule = replace(
        OUTPUT, metrics=("loss",), digits=3, metric_rows=16, statistics_rows=64
    )
    return make_consortium(OWNERS, cell_rows=16, output=rule).agreement


def seen(level: str = "development") -> SeenRun:
    return SeenRun(
        agreement=agreement(),
        level=level,
        visits=dict.fromkeys(OWNERS, 3),
        numbers=dict.fromkeys(OWNERS, 4),
        opened_bytes={},
        scrubbed="",
        reader="one",
        model_bytes=100,
        told_by="somebody says",
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
    shown = outcome(tmp_path)
    page = render(shown)
    assert "DEVELOPMENT" in page
    assert say_banner(shown.level) in page
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


def test_three_sentences_say_what_happened(tmp_path: Path) -> None:
    page = render(outcome(tmp_path))
    (told,) = re.findall(r'<ol class="told">(.*?)</ol>', page)
    assert told.count("<li>") == 3
    for words in ("signed one agreement", "96.0%", "50.0%", "attacked", "rehearsal"):
        assert words in told


def test_visits_that_overlap_stand_below_each_other(tmp_path: Path) -> None:
    travel = Travel(buffers=2)
    apart = outcome(tmp_path, travel=travel)
    assert 'style="height:24px"' in render(apart)
    assert 'style="height:44px"' not in render(apart)
    first, *_, last = (v for v in apart.progress.visits if v.holder == "north")
    first.ended_s = last.began_s + 0.1
    page = render(apart)
    assert page.count('style="height:44px"') == 2  # in all visits and in the first ones
    assert "Two buffers" in page
    assert "there is no read path" in page


def test_groups_are_marked_in_mixed_runs_alone(tmp_path: Path) -> None:
    shown = outcome(tmp_path, travel=Travel(mixed=True))
    for visit in shown.progress.visits:
        visit.position = (visit.number - 1) // 3
        visit.marks.append(("train", visit.began_s + 0.3))
    assert "<title>visit batch 1</title>" in render(shown)
    shown.travel = ONE_BUFFER
    assert "<title>visit batch 1</title>" not in render(shown)


def test_hidden_loading_is_not_called_exposed(tmp_path: Path) -> None:
    shown = outcome(tmp_path, travel=Travel(buffers=2))
    assert "4.80 s of that, 83% of the time" in render(shown)
    for visit in shown.progress.visits:
        visit.began_s, visit.ended_s = visit.number, visit.number + 3.0
        visit.marks = [("load", visit.began_s), ("train", visit.began_s + 1.0)]
    assert "1.00 s of that, 12% of the time" in render(shown)


def test_checkpoints_and_sums_are_told(tmp_path: Path) -> None:
    shown = outcome(tmp_path)
    made = CheckpointSeen(1, at_s=2.0, sealed_bytes=5_000, seconds=0.1)
    missed = CheckpointSeen(2, at_s=3.0, missed="a <broker> is away")
    shown.progress.checkpoints += [made, missed]
    page = render(shown)
    assert "5.0 kB" in page
    assert "a &lt;broker&gt; is away" in page
    assert "1 checkpoint keys" in page


def test_what_left_is_told_sums_of_prepare_included(tmp_path: Path) -> None:
    shown = outcome(tmp_path)
    assert "What left the accelerator" not in render(shown)
    shown.verdict.agreement = agreement()
    shown.verdict.manifest = SimpleNamespace(
        statistics={"pixel_sum": Statistic((2,), (1.5, 2.0))}, sandbox="none"
    )
    page = render(shown)
    assert "rounded to 3 decimal places, each over at least 16 rows" in page
    assert "sums over at least 64 rows" in page
    assert "<td>pixel_sum</td><td>1.5, 2</td>" in page


def test_a_data_officer_is_answered_first(tmp_path: Path) -> None:
    shown = outcome(tmp_path)
    shown.verdict.agreement = agreement()
    page = render(shown)
    words = page.index("<h2>For the owners&#x27; data officers</h2>")
    assert words < page.index("<h2>What was refused</h2>")
    assert page.index("<summary>Details") < page.index(
        "<h2>Whose rows are in memory</h2>"
    )
    assert page.rindex("<h2>") == page.index("<h2>Terms</h2>")
    for question in ("Who saw my rows?", "What left, and to whom?"):
        assert page.count(question) == len(OWNERS)
    assert "keeps NOBODY out" in page
    assert "A green tick shows" in page
    assert "to every party, the operator included." in page
    assert "destroys my key" in page


@pytest.mark.parametrize(
    ("level", "words", "chip"),
    [
        ("development", "can read rows, keys", True),
        ("development (rehearsing attested-host)", "can read rows, keys", True),
        ("tee", "flaws of the processor", False),
        ("gpu-tee", "flaws of processor or GPU", False),
        ("attested-host", "physical access, who can read the memory", False),
        ("untrusted-gpu", "two of the three servers", False),
    ],
)
def test_every_level_says_what_it_does_not_protect_from(
    level: str, words: str, chip: bool
) -> None:
    run = seen(level)
    said = for_owners(run)
    assert words in said
    assert ("green tick" in said) is chip
    assert f"level {level}" in who_gave_what(run)


def test_rows_at_home_send_what_was_learnt_to_the_others() -> None:
    words = "my accelerator&#x27;s update, encrypted"
    assert for_owners(replace(seen(), reader="own")).count(words) == len(OWNERS)
    assert words not in for_owners(seen())
    picture = who_gave_what(replace(seen(), reader="own"))
    assert picture.count("updates, 3 rounds") == len(OWNERS)
    assert "each accelerator adds up a part" in picture
    assert "the mean" not in who_gave_what(seen())


def test_servers_that_got_shares_are_named() -> None:
    signed = agreement()
    cards = [create_identity(name).card for name in ("sa", "sb", "sc")]
    servers = [Party(c.name, ("share_server",), c.sign, c.hpke) for c in cards]
    shared = replace(
        signed,
        parties=(*signed.parties, *servers),
        servers=ServersRule(P="sa", M="sb", Z="sc"),
    )
    run = replace(seen(), agreement=shared)
    words = "P (sa), M (sb), Z (sc)"
    assert for_owners(run).count(words) == len(OWNERS)
    assert "shares at sa, sb and sc" in who_gave_what(run)


def test_the_page_of_a_run_has_its_numbers_and_escapes_them() -> None:
    place = {"visit": 0, "first_row": 0, "owner": "north", "rows": 20, "seconds": 0.5}
    rows = [
        {**place, "purpose": purpose, "epoch": epoch, "table": "<t>", "loss": loss}
        for purpose, epoch, loss in (
            ("heldout", 1, 0.5),
            ("heldout", 2, 0.25),
            ("train", 2, 0.125),
        )
    ]
    page = run_page("<job>", seen(), rows, {"loss": 0.25}, {"run": "<place>"}).decode()
    assert "<job>" not in page
    assert "<td>&lt;t&gt;</td>" in page
    assert "<dd>&lt;place&gt;</dd>" in page
    assert page.count('title="epoch') + page.count("<title>epoch") == 2
    assert ">0.25</b>" in page
    parser = Balance()
    parser.feed(page)
    assert not parser.open


def test_failures_that_are_no_attack_are_told_besides(tmp_path: Path) -> None:
    shown = outcome(tmp_path)
    assert "visit 1 of east" in render(shown).partition("Other refusals")[2]
    shown.progress.attacks[0].visit = shown.progress.visits[0].visit
    assert "Besides" not in render(shown)


def test_the_sandbox_is_named_as_it_was(tmp_path: Path) -> None:
    shown = outcome(tmp_path)
    assert "the recipe ran without a sandbox" in render(shown)
    shown.progress.sandbox = "namespaces+landlock+seccomp"
    assert "without a sandbox" not in render(shown)
    assert "in a sandbox (namespaces+landlock+seccomp)" in render(shown)


def test_its_level_is_explained(tmp_path: Path) -> None:
    for level in ("development", "development (rehearsing attested-host)"):
        shown = outcome(tmp_path)
        shown.level = level
        page = render(shown)
        assert escape(level_words(level).not_out) in page
        assert escape(level_words(level).banner) in page
        assert "a rehearsal" in page


def test_what_the_model_writes_is_escaped(tmp_path: Path) -> None:
    shown = outcome(tmp_path)
    shown.sample = Sample("What it writes", "def ", "<script>")
    assert "<b>def </b>&lt;script&gt;" in render(shown)


def test_curves_show_joint_and_alone_over_epochs(tmp_path: Path) -> None:
    shown = outcome(tmp_path)
    assert "Results by epoch" not in render(shown)
    for visit in shown.progress.visits[1:]:
        visit.purpose, visit.epoch = "heldout", visit.number // 4
        visit.metrics = {"accuracy": 0.25, "alone.north.accuracy": 0.125}
    page = render(shown)
    assert "together, epoch 2: 25.0%" in page
    assert "north alone, epoch 1: 12.5%" in page
    assert "not released" in page  # south's own model


def test_a_local_run_has_no_visits_to_show(tmp_path: Path) -> None:
    shown = outcome(tmp_path)
    shown.plan, shown.progress = "local", Progress(6)
    page = render(shown)
    assert "bit for bit" in page
    assert "Whose rows are in memory" not in page


@pytest.mark.chromium
def test_a_browser_shows_it_without_network(tmp_path: Path) -> None:
    shown = outcome(tmp_path)
    shown.world.report.write_text(render(shown), encoding="utf-8")
    log = browse(shown.world.report, tmp_path)
    assert "Three owners, one model" in log.stdout
    assert "CONSOLE" not in log.stderr


@pytest.mark.chromium
def test_the_browsers_complaints_are_seen(tmp_path: Path) -> None:
    """Control: what the policy forbids leaves a line in the browser's log."""
    shown = outcome(tmp_path)
    page = render(shown).replace("</main>", "<script>1</script></main>")
    shown.world.report.write_text(page, encoding="utf-8")
    assert "CONSOLE" in browse(shown.world.report, tmp_path).stderr


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
        timeout=300,
        check=True,
    )
