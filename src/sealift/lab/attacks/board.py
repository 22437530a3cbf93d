"""The table: every attack of `sealift attacks`, in order."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

from sealift.lab.attacks import (
    cuts,
    evidence,
    memory,
    papers,
    proofs,
    room,
    rules,
    strangers,
    visits,
)
from sealift.lab.attacks.scenario import Scenario, Tried, attempt
from sealift.lab.attacks.stage import Stage

_LEASE: Final = "a holder writes its leased range and nothing else"
_READ: Final = "a holder reads nothing"
_NEXT: Final = "the secrets of one visit open nothing of the next"
_WHOLE: Final = "a cargo arrives whole, in order, unchanged, or not at all"
_PEER: Final = "no key and no row goes to whom the agreement does not accept"
_GONE: Final = "a visit's rows are gone before the next holder is met"
_STALL: Final = "a holder that stalls or is late loses its visit, nothing else"
_COMMITTED: Final = "rows are those that their owner committed to"
_ROWS: Final = "two numbers differ by no fewer rows than a cell, after any restart"
_CELL: Final = "the cell alone is served"
_SLICE: Final = "what a recipe does in one slice is nowhere in the next"
_FREE: Final = "without walls it is done"
_HONEST: Final = "the honest visit gets its receipt"
_FOLLOWED: Final = "under a vendor's ratchet it reads the rows"
_PROOF: Final = "no key without evidence that conforms"
_LIST: Final = "the list of what ran is the kernel's own, and fresh"
_PAPER: Final = "no minority changes the agreement, and nobody takes it back"
_ADMIN: Final = "the broker's files and its traffic hold no key"
_LOSS: Final = "a host that loses its proof loses its lease"
_LEVEL: Final = "the level never drops silently"
_PLAYED: Final = "what is played is never taken for real"
_AGREED: Final = "the agreed host gets the key"
_SIGNED: Final = "what all signed is served"
_GENUINE: Final = "the agreed host is accepted"
_DOOR: Final = "every kind of secret leaves by one decision"
_OUT: Final = "for the agreed accelerator all of them leave"
_WORD: Final = "a party's word is that of its key of now, at its time"
_INPUT: Final = "no exception of a library is the end of an input"
_NAME: Final = "a party's name is proved by its key"
_KEY: Final = "a key comes from its owner"
_LOG: Final = "a log that was shown only grows"
_RECEIPT: Final = "a receipt says what its accelerator signed"

SCENARIOS: Final[tuple[Scenario, ...]] = (
    Scenario(
        "T1", _LEASE, "writes behind the end of its lease", "outside-lease",
        visits.beyond_lease, visits.honest, _HONEST,
    ),
    Scenario(
        "T1", _LEASE, "writes into another buffer", "foreign-buffer",
        visits.foreign_buffer, visits.honest, _HONEST,
    ),
    Scenario(
        "T1", _LEASE, "brings a lease for an earlier process", "foreign-lease",
        visits.restarted_accelerator, visits.honest, _HONEST,
    ),
    Scenario(
        "T2", _READ, "asks for memory where frames belong", "unexpected-frame",
        visits.asks_for_memory, visits.honest, _HONEST,
    ),
    Scenario(
        "T3", _NEXT, "ratchets its visit key forward", "authentication",
        visits.next_visit, visits.right_key, "the visit's own key fits its frames",
    ),
    Scenario(
        "T3", _NEXT, "opens the records with what it had", "authentication",
        visits.follow_records, visits.follow_ratchet, _FOLLOWED,
    ),
    Scenario(
        "T4", _WHOLE, "sends a frame twice", "frame-order",
        visits.replayed, visits.honest, _HONEST,
    ),
    Scenario(
        "T4", _WHOLE, "brings another owner's record", "authentication",
        visits.swapped_record, visits.honest, _HONEST,
    ),
    Scenario(
        "T4", _WHOLE, "flips one bit of a record", "authentication",
        visits.flipped_byte, visits.honest, _HONEST,
    ),
    Scenario(
        "T5", _PEER, "shows evidence of another session", "evidence-unbound",
        evidence.other_challenge, evidence.genuine, _GENUINE,
    ),
    Scenario(
        "T5", _PEER, "shows evidence that binds another key", "evidence-unbound",
        evidence.unbound_key, evidence.genuine, _GENUINE,
    ),
    Scenario(
        "T5", _PEER, "shows evidence of a process in another role", "evidence-unbound",
        evidence.other_role, evidence.genuine, _GENUINE,
    ),
    Scenario(
        "T5", _PEER, "shows evidence of a host nobody named", "attester-unknown",
        evidence.other_attester, evidence.genuine, _GENUINE,
    ),
    Scenario(
        "T5", _PEER, "shows development evidence unasked", "development-refused",
        evidence.not_asked_for, evidence.genuine, _GENUINE,
    ),
    Scenario(
        "T6", _GONE, "looks for rows in the visit's memory", memory.NOTHING_LEFT,
        memory.look_for_rows, memory.rows_are_found, "during the visit they are found",
    ),
    Scenario(
        "T6", _GONE, "replaces the scrub by one that does not write", "scrub",
        memory.idle_scrub, memory.scrub_works, "the real scrub passes its read-back",
    ),
    Scenario(
        "T8", _STALL, "says nothing more", "peer-timeout",
        visits.stalled, visits.next_holder, "the next holder is served",
    ),
    Scenario(
        "T8", _STALL, "sends frames after its lease", "lease-expired",
        visits.late_frames, visits.next_holder, "the next holder is served",
    ),
    Scenario(
        "T9", _COMMITTED, "changes its rows after it signed", "content-mismatch",
        visits.changed_rows, visits.honest, _HONEST,
    ),
    Scenario(
        "N5", _ROWS, "asks the accelerator for one row more", "off-grid",
        cuts.offered_cut, cuts.whole_cell, _CELL,
    ),
    Scenario(
        "N5", _ROWS, "asks the holder for one row more", "off-grid",
        cuts.leased_cut, cuts.leased_cell, _CELL,
    ),
    Scenario(
        "N5", _ROWS, "resumes the job with another cut", "other-shape",
        cuts.other_shape, cuts.same_shape, "in its own shape it goes on",
    ),
    Scenario(
        "N5", _ROWS, "restarts all roles for one more visit", "too-many-visits",
        cuts.visited_again, cuts.visited_once, "the agreed visit is served",
    ),
    Scenario(
        "N6", _SLICE, "leaves bits in the offset of an open file", memory.NOTHING_LEFT,
        room.offset_left, room.offset_is_there, "with the descriptors it was sent it does",
    ),
    Scenario(
        "N6", _SLICE, "sets a flag of an open file", room.NOT_PERMITTED,
        room.flag_of_a_file, room.flag_is_set, _FREE,
    ),
    Scenario(
        "N6", _SLICE, "drops a library's pages from memory", room.NOT_PERMITTED,
        room.pages_dropped, room.pages_are_dropped, _FREE,
    ),
    Scenario(
        "N6", _SLICE, "asks which pages are in memory", room.NOT_PERMITTED,
        room.pages_asked_for, room.pages_are_told, _FREE,
    ),
    Scenario(
        "N6", _SLICE, "makes the overwriting of its memory fail", memory.NOTHING_LEFT,
        room.spoiled_overwriting, room.nothing_overwritten, "it lies there until then",
    ),
    Scenario(
        "P1", _PROOF, "booted another kernel", "tpm-pcr",
        proofs.other_boot, proofs.honest, _AGREED,
    ),
    Scenario(
        "P1", _PROOF, "ran a program nobody agreed to", "ima-entry-unlisted",
        proofs.other_program, proofs.honest, _AGREED,
    ),
    Scenario(
        "P1", _PROOF, "is a clean machine elsewhere", "tpm-other-host",
        proofs.other_host, proofs.honest, _AGREED,
    ),
    Scenario(
        "P2", _LIST, "hides what ran last", "ima-replay-differs",
        proofs.dropped_entry, proofs.honest, _AGREED,
    ),
    Scenario(
        "P2", _LIST, "tells another order", "ima-replay-differs",
        proofs.swapped_entries, proofs.honest, _AGREED,
    ),
    Scenario(
        "P2", _LIST, "shows a quote of before", "evidence-unbound",
        proofs.stale_quote, proofs.honest, _AGREED,
    ),
    Scenario(
        "P3", _PAPER, "serves what the owner did not sign", "agreement-unsigned",
        papers.one_signature_less, papers.signed_by_all, _SIGNED,
    ),
    Scenario(
        "P3", _PAPER, "changes a field under the signatures", "agreement-altered",
        papers.changed_after_signing, papers.signed_by_all, _SIGNED,
    ),
    Scenario(
        "P3", _PAPER, "writes the same number differently", "malformed",
        papers.another_form, papers.signed_by_all, _SIGNED,
    ),
    Scenario(
        "P3", _PAPER, "serves the agreement before", "agreement-superseded",
        papers.rolled_back, papers.signed_by_all, _SIGNED,
    ),
    Scenario(
        "P3", _PAPER, "puts another key into the vault", "other-key",
        papers.edited_database, papers.signed_by_all, _SIGNED,
    ),
    Scenario(
        "P4", _ADMIN, "searches vault, log and wire for the key", papers.NOTHING_FOUND,
        papers.search_everything, papers.search_finds, "the search finds what is there",
    ),
    Scenario(
        "P5", _LOSS, "runs an unlisted program afterwards", "ima-entry-unlisted",
        proofs.falls_later, proofs.goes_on, "an honest host renews its lease",
    ),
    Scenario(
        "P6", _LEVEL, "shows development evidence instead", "rehearsal-differs",
        proofs.weaker_evidence, proofs.accepted_weaker, "taken where the agreement says so",
    ),
    Scenario(
        "P7", _PLAYED, "brings a software TPM for a real one", "development-refused",
        proofs.software_as_hardware, proofs.honest, "it rehearses, and says so",
    ),
    Scenario(
        "P7", _PLAYED, "calls its maker a vendor of chips", "development-refused",
        proofs.software_called_chip, proofs.honest, "it rehearses, and says so",
    ),
    Scenario(
        "N1", _DOOR, "asks for a share after the agreement's end", "agreement-expired",
        rules.share_after_end, rules.lets_out, _OUT,
    ),
    Scenario(
        "N1", _DOOR, "asks for a share of keys that it did not get", "share-before-keys",
        rules.share_of_another, rules.lets_out, _OUT,
    ),
    Scenario(
        "N1", _DOOR, "asks for rows after it was revoked", "lease-revoked",
        rules.rows_of_revoked, rules.lets_out, _OUT,
    ),
    Scenario(
        "N1", _DOOR, "asks for a key once more than agreed", "uses-exhausted",
        rules.key_once_more, rules.lets_out, _OUT,
    ),
    Scenario(
        "N1", _DOOR, "has its device fed without evidence", "evidence-missing",
        rules.fed_without_evidence, rules.lets_out, _OUT,
    ),
    Scenario(
        "N7", _WORD, "leaves by a stolen key that was changed since", "former-key",
        rules.former_key, rules.key_of_now, "by the key of now it has left",
    ),
    Scenario(
        "N7", _WORD, "says something of tomorrow", "statement-early",
        rules.from_tomorrow, rules.of_today, "said now, it counts",
    ),
    Scenario(
        "N8", _LIST, "never ran what must have run", "ima-must-have",
        proofs.measures_too_little, proofs.honest, _AGREED,
    ),
    Scenario(
        "N9", _INPUT, "brings a certificate of odd extensions", "malformed",
        strangers.hostile_certificate, strangers.plain_certificate,
        "as its maker wrote it, it is read",
    ),
    Scenario(
        "C7", _NAME, "claims a party in a session", "authentication",
        strangers.claims_a_party, strangers.is_that_party, "the party itself is met",
    ),
    Scenario(
        "C7", _NAME, "takes a party's place at the relay", "name-unproven",
        strangers.squats_a_name, strangers.takes_its_place, "the party itself gets it",
    ),
    Scenario(
        "C9", _KEY, "seals a key of its own to the accelerator", "release-unsigned",
        rules.plants_a_key, proofs.honest, _AGREED,
    ),
    Scenario(
        "H6", _LOG, "shows a log that was written anew", "log-forked",
        rules.another_history, rules.same_history, "the head of before is taken",
    ),
    Scenario(
        "M4", _RECEIPT, "writes fewer rows into a receipt", "receipt-altered",
        rules.fewer_rows, rules.as_signed, "as it was signed, it verifies",
    ),
)  # fmt: skip


def try_all(scenarios: tuple[Scenario, ...] = SCENARIOS) -> Iterator[Tried]:
    """Try every attack on one stage; an attack that ruins it fails what follows."""
    with (
        tempfile.TemporaryDirectory(prefix="sealift-attacks-") as folder,
        closing(Stage(Path(folder))) as stage,
    ):
        for scenario in scenarios:
            yield attempt(scenario, stage)
