"""Evidence of a really booted host, captured once: list, log and quotes that fit."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from sealift import codec
from sealift.attest.evidence import Evidence
from sealift.attest.reference import (
    ImaReferences,
    ReferenceValues,
    TpmReferences,
    TpmRoot,
)
from sealift.attest.tpm.eventlog import parse
from sealift.attest.tpm.evidence import MEDIA_TYPE, TpmBody
from sealift.attest.tpm.ima import parse_list
from sealift.attest.verifier import Claims
from sealift.crypto.sign import PublicKey
from sealift.errors import EvidenceError, MalformedError, SealiftError
from sealift.ids import Digest
from tests.guest.agent import BUNDLE, BUSYBOX, PYTHON
from tests.sim.guest import examine, refused

FILE = Path(__file__).parents[2] / "spec" / "vectors" / "host.json"
BAD = ["exec", "bundle", "preload", "module"]


@cache
def captured() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FILE.read_text())
    found["steps"] = {each["step"]: each for each in found["steps"]}
    return found


def step(name: str) -> dict[str, Any]:
    found: dict[str, Any] = captured()["steps"][name]
    return found


def evidence(name: str) -> Evidence:
    return Evidence(TpmBody.kind, MEDIA_TYPE, codec.encode(step(name)["evidence"]))


@dataclass(frozen=True)
class Written:
    """The reference values in the file."""

    enroller: PublicKey
    root: Digest
    endorsement_key: Digest
    pcrs: dict[str, bytes]
    allow: dict[str, Digest]


@cache
def references() -> ReferenceValues:
    found: Written = codec.from_plain(Written, captured()["references"])
    tpm = TpmReferences(
        roots=(TpmRoot(name="maker", key=found.root, operator="software"),),
        endorsement_keys=(found.endorsement_key,),
        pcrs={number: (value,) for number, value in found.pcrs.items()},
        ima=ImaReferences(
            allow={path: (one,) for path, one in found.allow.items()},
            must=(BUSYBOX, PYTHON, BUNDLE),
        ),
        revocation="none",
    )
    return ReferenceValues(enrollers=(found.enroller,), tpm=tpm)


def claims(name: str, *, earlier: Claims | None = None, **changes: Any) -> Claims:
    basis: dict[str, Any] = {
        "bound": bytes.fromhex(step(name)["bound"]),
        "at_s": captured()["at_s"],
        "earlier": earlier,
    }
    shown = changes.pop("evidence", None) or evidence(name)
    return examine(shown, references(), **{**basis, **changes})


def test_the_file_is_small_and_whole() -> None:
    assert FILE.stat().st_size < 300_000
    for name, each in captured()["steps"].items():
        assert evidence(name).digest.to_text() == each["sha256"]


@pytest.mark.parametrize("name", ["boot", "runtime-event", *BAD])
def test_lists_read_as_expected(name: str) -> None:
    listed = parse_list(TpmBody.parse(evidence(name).body).ima_list)
    entries = [listed.entry(number) for number in range(len(listed))]
    found = [f"{each.digest.hex()} {each.path}" for each in entries]
    assert found == step(name)["expected"]["ima"]


def test_the_boot_and_its_continuation_pass() -> None:
    boot = claims("boot")
    later = claims("runtime-event", earlier=boot)
    assert not refused(boot)
    assert not refused(later)
    assert [each.kind for each in later.events] == ["module"]


@pytest.mark.parametrize("name", BAD)
def test_each_bad_act_is_refused_by_its_path(name: str) -> None:
    """Each list is a part of its own: what was proved before is taken as good."""
    earlier = claims("runtime-event", earlier=claims("boot"))
    for before in BAD[: BAD.index(name)]:
        earlier = claims(before, earlier=earlier)
    found = refused(claims(name, earlier=earlier))
    assert list(found.values()) == ["ima-entry-unlisted"]
    assert next(iter(found)).startswith(step(name)["expected"]["refused_path"])


def test_another_challenge_is_refused() -> None:
    assert refused(claims("boot", bound=bytes(32))).popitem()[1] == "evidence-unbound"


def test_a_list_with_a_gap_is_refused() -> None:
    """`bundle` continues `exec`, which the verifier did not see."""
    found = refused(claims("bundle", earlier=claims("boot")))
    assert set(found.values()) == {"tpm-ima-list"}


@pytest.mark.parametrize("field", ["quote", "signature"])
def test_each_byte_of_the_quote_counts(field: str) -> None:
    body = TpmBody.parse(evidence("boot").body)
    original = getattr(body, field)
    for place in range(len(original)):
        with pytest.raises((EvidenceError, MalformedError)):
            claims("boot", evidence=_with(body, **{field: _flipped(original, place)}))


def test_each_byte_of_the_list_counts_but_recorded_hashes() -> None:
    """The SHA-1 beside each entry is not used: what was hashed is hashed again.

    Every 5th byte: entries are of uneven length, so all their fields are met.
    """
    body = TpmBody.parse(evidence("boot").body)
    listed = parse_list(body.ima_list)
    recorded, at = set[int](), 0
    for template, content in zip(listed.templates, listed.contents, strict=True):
        recorded |= set(range(at + 4, at + 24))
        at += 32 + len(template) + len(content)
    assert at == len(body.ima_list)
    counts = [
        _is_refused(_with(body, ima_list=_flipped(body.ima_list, place)))
        for place in range(0, at, 5)
    ]
    assert counts == [place not in recorded for place in range(0, at, 5)]


def test_each_digest_of_the_event_log_counts() -> None:
    """Other bytes of a log: spec/evidence-logs.md says which of them nothing covers."""
    body = TpmBody.parse(evidence("boot").body)
    events = [each for each in parse(body.event_log).events if each.extends]
    assert len(events) > 15
    for event in events:
        place = body.event_log.index(event.digests["sha256"], event.offset)
        changed = _flipped(body.event_log, place + 31)
        assert _is_refused(_with(body, event_log=changed)), event


def _is_refused(shown: Evidence) -> bool:
    try:
        return bool(refused(claims("boot", evidence=shown)))
    except SealiftError:
        return True


def _with(body: TpmBody, **changes: Any) -> Evidence:
    return Evidence(TpmBody.kind, MEDIA_TYPE, codec.encode(replace(body, **changes)))


def _flipped(raw: bytes, place: int) -> bytes:
    return raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :]
