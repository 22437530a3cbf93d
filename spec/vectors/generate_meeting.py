"""Write meeting.json: invitations, proofs, digests, delays and words, for fixed inputs.

Keys come from seeds that are made of counters. Run it from the repository's root; the output
is the same every time.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sealift.attest.level import Level
from sealift.codec import encode
from sealift.crypto.identity import Identity
from sealift.crypto.keys import SecretKey
from sealift.data.schema.document import schema_from_plain, schema_to_plain
from sealift.ids import Digest
from sealift.meet.invitation import (
    HOST,
    Invitation,
    Prover,
    meeting_digest,
    prove_invited,
)
from sealift.meet.owner import answer_delay_s
from sealift.meet.question import BEGINNINGS, ENDINGS, words_of
from sealift.meet.terms import Declaration
from sealift.release.agreement.code import measure_bundle
from sealift.release.agreement.resources import OutputRule, TravelRule
from sealift.travel.settings import JobSettings, training_rule_of

TARGET = Path(__file__).with_name("meeting.json")
IDENTITY_BYTES = 128
SPENT_S = (0.0, 1.5, 4.0, 5.0, 8.0, 100.0)


def identity(name: str, first: int) -> Identity:
    """A real one of a seed that counts from ``first``."""
    seed = bytes((first + place) % 256 for place in range(IDENTITY_BYTES))
    return Identity(name, SecretKey(seed))


def case(number: int, name: str, *addresses: str) -> dict[str, Any]:
    """One party's invitation and both proofs in one session."""
    host, guest = identity(HOST, 7), identity(name, 10 * number)
    meeting = bytes(range(number, number + 16))
    secret = bytes(range(number + 100, number + 132))
    th2 = bytes(range(number + 50, number + 82))
    invitation = Invitation(
        meeting=meeting,
        name=name,
        host=host.public_key,
        secret=SecretKey(secret),
        expires_s=1_800_000_000 + number,
        addresses=addresses,
    )
    proofs = {
        f"{side}_proof": prove_invited(SecretKey(secret), side, th2, card).hex()
        for side, card in ((Prover.GUEST, guest.card), (Prover.HOST, host.card))
    }
    return {
        "meeting": meeting.hex(),
        "name": name,
        "host": host.public_key.raw.hex(),
        "secret": secret.hex(),
        "expires_s": invitation.expires_s,
        "addresses": list(addresses),
        "text": invitation.to_text(),
        "agreement": meeting_digest(meeting).raw.hex(),
        "th2": th2.hex(),
        "guest_card": encode(guest.card).decode(),
        "host_card": encode(host.card).decode(),
        **proofs,
    }


def declared(*guests: str) -> dict[str, Any]:
    """A declaration, the fields of every table, and what names it at the owners'."""
    fields = [
        {"name": "age", "dtype": "float32", "max": 120},
        {"name": "ward", "dtype": "int64", "categories": ["a", "b"]},
    ]
    declaration = Declaration(
        meeting=bytes(range(16)),
        name="wards",
        host=identity(HOST, 7).card,
        guests=guests,
        code=measure_bundle({"recipe.py": b"def build(): ...\n"}, "recipe.py"),
        job='plan = "ddp"\n',
        schema=schema_to_plain(schema_from_plain({"fields": fields})),
        accept=(Level.DEVELOPMENT,),
        output=OutputRule(
            metrics=("loss",),
            digits=3,
            values_per_visit=8,
            metric_rows=16,
            audience="everyone",
            min_visits=1,
            max_visits=50,
            min_holders=2,
            min_rows=32,
            baseline_alone=False,
            recipe_text=False,
        ),
        travel=TravelRule(1, 60.0),
        training=training_rule_of(JobSettings(), "ddp", runs=1),
        rows_at_home=True,
        not_after=1_800_000_000,
    )
    return {
        "canonical": encode(declaration).decode(),
        "digest": declaration.digest.raw.hex(),
        "columns": sorted(declaration.columns),
        "longest_yes_bytes": declaration.consent_bytes,
    }


def vectors() -> dict[str, Any]:
    """All of them."""
    terms = [Digest.of(b"terms %d" % number) for number in range(3)]
    return {
        "invitations": [
            case(1, "north", "host.example:7420"),
            case(2, "st-mary", "192.0.2.7:7420", "[2001:db8::7]:443"),
        ],
        "declarations": [
            declared("north", "east"),
            declared("north", "east", "st-mary"),
        ],
        "delays": [[spent, spent + answer_delay_s(spent)] for spent in SPENT_S],
        "words": [{"terms": t.raw.hex(), "words": list(words_of(t))} for t in terms],
        "beginnings": list(BEGINNINGS),
        "endings": list(ENDINGS),
    }


if __name__ == "__main__":
    TARGET.write_text(json.dumps(vectors(), indent=1) + "\n")
