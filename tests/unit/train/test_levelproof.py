"""What an owner's log must say of a run, for its manifest's level to be proved by it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sealift.attest.evidence import Evidence
from sealift.crypto.sign import SigningKey
from sealift.errors import IntegrityError, PolicyError
from sealift.ids import Digest
from sealift.release.log.entries import LogEntry, SignedTreeHead, TreeHead
from sealift.train.output.manifest import RunManifest, head_of, prove_releases

LEVEL = "development (rehearsing attested-host)"
INSTANCE = SigningKey.generate().public_key
LOG = SigningKey.generate().public_key
OTHER = SigningKey.generate().public_key
AGREEMENT = Digest.of(b"agreement")
HEAD = SignedTreeHead(TreeHead(log=LOG, size=2, root=AGREEMENT, at_s=1), b"signature")
MANIFEST = RunManifest(
    job="digits",
    agreement=AGREEMENT,
    level=LEVEL,
    plan="travel",
    buffers=1,
    mixed=False,
    sandbox="",
    device="cpu",
    software="",
    instance=INSTANCE,
    ranks=(INSTANCE,),
    collectives="",
    traces=None,
    evidence=Evidence("tpm", "application/x", b"body"),
    weights=None,
    steps=0,
    rows=0,
    visits={},
    metrics={},
    statistics={},
    prepared={},
    resumed=0,
    heads=(HEAD,),
)
RELEASE = LogEntry(
    kind="release",
    at_s=1,
    agreement=AGREEMENT,
    resource="north-train",
    instance=INSTANCE,
    level=LEVEL,
    evidence=Digest.of(b"session"),
)


def test_it_names_what_was_released_on_which_evidence() -> None:
    other = replace(RELEASE, instance=OTHER, level="tee", resource="another run's")
    shown = prove_releases(MANIFEST, [other, RELEASE, RELEASE])
    assert shown.resources == ("north-train", "north-train")
    assert shown.evidence == (Digest.of(b"session"),)


def test_another_level_in_the_log_is_refused() -> None:
    with pytest.raises(PolicyError) as caught:
        prove_releases(MANIFEST, [RELEASE, replace(RELEASE, level="development")])
    assert caught.value.code == "other-level"


@pytest.mark.parametrize(
    "entry",
    [
        replace(RELEASE, instance=OTHER),
        replace(RELEASE, agreement=Digest.of(b"other")),
        replace(RELEASE, kind="refusal"),
    ],
)
def test_a_log_of_another_run_proves_nothing(entry: LogEntry) -> None:
    with pytest.raises(IntegrityError) as caught:
        prove_releases(MANIFEST, [entry])
    assert caught.value.code == "no-release"


def test_only_logs_that_the_manifest_names_are_compared() -> None:
    assert head_of(MANIFEST, LOG) is HEAD
    with pytest.raises(IntegrityError) as caught:
        head_of(MANIFEST, OTHER)
    assert caught.value.code == "other-log"
