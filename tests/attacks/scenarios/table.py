"""The table: every attack of `make attacks`, in order, each beside a control."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sealift.errors import UnavailableError
from sealift.release.facts import ReleaseKind
from tests.attacks.scenarios import (
    evidence,
    formerholder,
    release,
    sandbox,
    sessions,
    visits,
)
from tests.attacks.scenarios.release import DAY_S, NOTHING_FOUND, decided
from tests.attacks.scenarios.sandbox import NOT_PERMITTED, confined, free
from tests.attacks.scenarios.world import NOTHING_LEFT, AttackWorld

NO_TPM: Final = "guest-tpm"
Attempt = Callable[[AttackWorld], str]
Control = Callable[[AttackWorld], bool]


@dataclass(frozen=True, slots=True)
class Scenario:
    """One attack: a claim, somebody who tries, and a control that must succeed.

    Attributes:
        name: Number of the threat, as in the tests.
        claim: What must hold.
        control: The same without the attack, which must succeed: a world on which
            nothing works refuses everything.
        shown: What the control shows, in words.
        attack: What is tried, in words.
        expected: Stable name of the refusal.
        attempt: Tries it; the stable name of the refusal, or empty if it got through.
    """

    name: str
    claim: str
    control: Control
    shown: str
    attack: str
    expected: str
    attempt: Attempt


@dataclass(frozen=True, slots=True)
class Tried:
    """An attack that was tried.

    Attributes:
        missing: What this machine lacks to try it; then it was not.
    """

    scenario: Scenario
    refusal: str
    control_held: bool
    missing: str = ""

    @property
    def good(self) -> bool:
        """Refused for the right reason, and the control succeeded; or not tried."""
        refused = self.refusal == self.scenario.expected and self.control_held
        return refused or bool(self.missing)


def attempt(scenario: Scenario, world: AttackWorld) -> Tried:
    """Try one attack and its control, on a machine that has what it takes."""
    try:
        return Tried(scenario, scenario.attempt(world), scenario.control(world))
    except UnavailableError as error:
        if error.code != NO_TPM:
            raise
        return Tried(scenario, "", False, missing="swtpm")


def try_all() -> Iterator[Tried]:
    """Try every attack on one world; an attack that ruins it fails what follows."""
    with (
        tempfile.TemporaryDirectory(prefix="sealift-attacks-") as folder,
        closing(AttackWorld(Path(folder))) as world,
    ):
        for scenario in SCENARIOS:
            yield attempt(scenario, world)


def _claim(
    name: str,
    claim: str,
    control: Control,
    shown: str,
    *attacks: tuple[str, str, Attempt],
) -> tuple[Scenario, ...]:
    """What must hold, what shows that it can, and who tries: words, refusal, how."""
    return tuple(Scenario(name, claim, control, shown, *each) for each in attacks)


_HONEST: Final = visits.honest, "the honest visit gets its receipt"
_AGREED: Final = evidence.agreed_host, "the agreed host gets the key"
_REHEARSES: Final = evidence.agreed_host, "it rehearses, and says so"
_NEXT: Final = "the secrets of one visit open nothing of the next"
_GONE: Final = "a visit's rows are gone before the next holder is met"
_ROWS: Final = "two numbers differ by no fewer rows than a cell, after any restart"
_SLICE: Final = "what a recipe does in one slice is nowhere in the next"
_LIST: Final = "the list of what ran is the kernel's own, and fresh"
_WORD: Final = "a party's word is that of its key of now, at its time"
_NAME: Final = "a party's name is proved by its key"

SCENARIOS: Final[tuple[Scenario, ...]] = (
    *_claim(
        "T1", "a holder writes its leased range and nothing else", *_HONEST,
        ("writes behind the end of its lease", "outside-lease", visits.beyond_lease),
        ("writes into another buffer", "foreign-buffer", visits.foreign_buffer),
        ("brings a lease for an earlier process", "foreign-lease",
         visits.restarted_accelerator),
    ),
    *_claim(
        "T2", "a holder reads nothing", *_HONEST,
        ("asks for memory where frames belong", "unexpected-frame",
         visits.asks_for_memory),
    ),
    *_claim(
        "T3", _NEXT, formerholder.right_key, "the visit's own key fits its frames",
        ("ratchets its visit key forward", "authentication", formerholder.next_visit),
    ),
    *_claim(
        "T3", _NEXT, formerholder.follow_ratchet, "under a vendor's ratchet it reads the rows",
        ("opens the records with what it had", "authentication", formerholder.follow_records),
    ),
    *_claim(
        "T4", "a cargo arrives whole, in order, unchanged, or not at all", *_HONEST,
        ("sends a frame twice", "frame-order", visits.replayed),
        ("brings another owner's record", "authentication", visits.swapped_record),
        ("flips one bit of a record", "authentication", visits.flipped_byte),
    ),
    *_claim(
        "T5", "no key and no row goes to whom the agreement does not accept",
        evidence.genuine, "the agreed host is accepted",
        ("shows evidence of another session", "evidence-unbound",
         evidence.other_challenge),
        ("shows evidence that binds another key", "evidence-unbound",
         evidence.unbound_key),
        ("shows evidence of a process in another role", "evidence-unbound",
         evidence.other_role),
        ("shows evidence of a host nobody named", "attester-unknown",
         evidence.other_attester),
        ("shows development evidence unasked", "development-refused",
         evidence.not_asked_for),
    ),
    *_claim(
        "T6", _GONE, visits.rows_are_found, "during the visit they are found",
        ("looks for rows in the visit's memory", NOTHING_LEFT, visits.look_for_rows),
    ),
    *_claim(
        "T6", _GONE, visits.scrub_works, "the real scrub passes its read-back",
        ("replaces the scrub by one that does not write", "scrub", visits.idle_scrub),
    ),
    *_claim(
        "T8", "a holder that stalls or is late loses its visit, nothing else",
        visits.next_holder, "the next holder is served",
        ("says nothing more", "peer-timeout", visits.stalled),
        ("sends frames after its lease", "lease-expired", visits.late_frames),
    ),
    *_claim(
        "T9", "rows are those that their owner committed to", *_HONEST,
        ("changes its rows after it signed", "content-mismatch", visits.changed_rows),
    ),
    *_claim(
        "N5", _ROWS, visits.whole_cell, "the cell alone is served",
        ("asks the accelerator for one row more", "off-grid", visits.offered_cut),
    ),
    *_claim(
        "N5", _ROWS, visits.leased_cell, "the cell alone is served",
        ("asks the holder for one row more", "off-grid", visits.leased_cut),
    ),
    *_claim(
        "N5", _ROWS, visits.same_shape, "in its own shape it goes on",
        ("resumes the job with another cut", "other-shape", visits.other_shape),
    ),
    *_claim(
        "N5", _ROWS, visits.visited_once, "the agreed visit is served",
        ("restarts all roles for one more visit", "too-many-visits",
         visits.visited_again),
    ),
    *_claim(
        "N6", _SLICE, sandbox.offset_is_there, "with the descriptors it was sent it does",
        ("leaves bits in the offset of an open file", NOTHING_LEFT, sandbox.offset_left),
    ),
    *_claim(
        "N6", _SLICE, free("flag"), "without walls it is done",
        ("sets a flag of an open file", NOT_PERMITTED, confined("flag")),
    ),
    *_claim(
        "N6", _SLICE, free("drop"), "without walls it is done",
        ("drops a library's pages from memory", NOT_PERMITTED, confined("drop")),
    ),
    *_claim(
        "N6", _SLICE, free("ask"), "without walls it is done",
        ("asks which pages are in memory", NOT_PERMITTED, confined("ask")),
    ),
    *_claim(
        "N6", _SLICE, sandbox.nothing_overwritten, "it lies there until then",
        ("makes the overwriting of its memory fail", NOTHING_LEFT,
         sandbox.spoiled_overwriting),
    ),
    *_claim(
        "P1", "no key without evidence that conforms", *_AGREED,
        ("booted another kernel", "tpm-pcr", evidence.other_boot),
        ("ran a program nobody agreed to", "ima-entry-unlisted",
         evidence.other_program),
        ("is a clean machine elsewhere", "tpm-other-host", evidence.other_host),
    ),
    *_claim(
        "P2", _LIST, *_AGREED,
        ("hides what ran last", "ima-replay-differs", evidence.dropped_entry),
        ("tells another order", "ima-replay-differs", evidence.swapped_entries),
        ("shows a quote of before", "evidence-unbound", evidence.stale_quote),
    ),
    *_claim(
        "P3", "no minority changes the agreement, and nobody takes it back",
        release.signed_by_all, "what all signed is served",
        ("serves what the owner did not sign", "agreement-unsigned",
         release.one_signature_less),
        ("changes a field under the signatures", "agreement-altered",
         release.changed_after_signing),
        ("writes the same number differently", "malformed", release.another_form),
        ("serves the agreement before", "agreement-superseded", release.rolled_back),
        ("puts another key into the vault", "other-key", release.edited_database),
    ),
    *_claim(
        "P4", "the broker's files and its traffic hold no key",
        release.search_finds, "the search finds what is there",
        ("searches vault, log and wire for the key", NOTHING_FOUND,
         release.search_everything),
    ),
    *_claim(
        "P5", "a host that loses its proof loses its lease",
        evidence.goes_on, "an honest host renews its lease",
        ("runs an unlisted program afterwards", "ima-entry-unlisted",
         evidence.falls_later),
    ),
    *_claim(
        "P6", "the level never drops silently",
        evidence.accepted_weaker, "taken where the agreement says so",
        ("shows development evidence instead", "rehearsal-differs",
         evidence.weaker_evidence),
    ),
    *_claim(
        "P7", "what is played is never taken for real", *_REHEARSES,
        ("brings a software TPM for a real one", "development-refused",
         evidence.software_as_hardware),
        ("calls its maker a vendor of chips", "development-refused",
         evidence.software_called_chip),
    ),
    *_claim(
        "N1", "every kind of secret leaves by one decision",
        release.lets_out, "for the agreed accelerator all of them leave",
        ("asks for a share after the agreement's end", "agreement-expired",
         decided(ReleaseKind.CHECKPOINT_SHARE, late_s=2 * DAY_S)),
        ("asks for a share of keys that it did not get", "share-before-keys",
         decided(ReleaseKind.CHECKPOINT_SHARE, held=frozenset())),
        ("asks for rows after it was revoked", "lease-revoked",
         decided(ReleaseKind.ROWS, revoked="ima-entry-unlisted")),
        ("asks for a key once more than agreed", "uses-exhausted",
         decided(ReleaseKind.DATA_KEY, used=3)),
        ("has its device fed without evidence", "evidence-missing",
         decided(ReleaseKind.FED_DEVICE, unproven=True)),
    ),
    *_claim(
        "N7", _WORD, release.key_of_now, "by the key of now it has left",
        ("leaves by a stolen key that was changed since", "former-key",
         release.former_key),
    ),
    *_claim(
        "N7", _WORD, release.of_today, "said now, it counts",
        ("says something of tomorrow", "statement-early", release.from_tomorrow),
    ),
    *_claim(
        "N8", _LIST, *_AGREED,
        ("never ran what must have run", "ima-must-have", evidence.measures_too_little),
    ),
    *_claim(
        "N9", "no exception of a library is the end of an input",
        sessions.plain_certificate, "as its maker wrote it, it is read",
        ("brings a certificate of odd extensions", "malformed",
         sessions.hostile_certificate),
    ),
    *_claim(
        "C7", _NAME, sessions.is_that_party, "the party itself is met",
        ("claims a party in a session", "authentication", sessions.claims_a_party),
    ),
    *_claim(
        "C7", _NAME, sessions.takes_its_place, "the party itself gets it",
        ("takes a party's place at the relay", "name-unproven", sessions.squats_a_name),
    ),
    *_claim(
        "C9", "a key comes from its owner", *_AGREED,
        ("seals a key of its own to the accelerator", "release-unsigned",
         release.plants_a_key),
    ),
    *_claim(
        "H6", "a log that was shown only grows",
        release.same_history, "the head of before is taken",
        ("shows a log that was written anew", "log-forked", release.another_history),
    ),
    *_claim(
        "M4", "a receipt says what its accelerator signed",
        release.as_signed, "as it was signed, it verifies",
        ("writes fewer rows into a receipt", "receipt-altered", release.fewer_rows),
    ),
)  # fmt: skip
