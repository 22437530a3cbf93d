"""Captures `host.json`: evidence of a really booted guest, before and after bad acts.

    python spec/vectors/generate_host.py

Boots the guest of `make guest`, so it needs what the tests marked `guest` need. Every
run gives other bytes: keys, clocks and signatures are of that run. `expected` says how
our parsers read the lists then; the quotes prove that they are what the kernel hashed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from sealift import codec
from sealift.attest.evidence import Evidence
from sealift.attest.reference import ReferenceValues
from sealift.attest.runtimelog import RuntimeEvent
from sealift.attest.tpm.evidence import TpmBody
from sealift.attest.tpm.ima import parse_list
from sealift.crypto.hash import labelled
from tests.guest.agent import Act
from tests.guest.machine import Guest

ROOT = Path(__file__).resolve().parents[2]
TARGET = Path(__file__).with_name("host.json")
ACTS: tuple[Act, ...] = ("exec", "bundle", "preload", "module")
NOTE = (
    "Evidence of a guest that was really booted under QEMU (software emulation) with a "
    "software TPM: stock Debian kernel, OVMF, IMA. It protects nobody. Made by "
    "generate_host.py; spec: tests/guest/README.md."
)


def bound(step: str) -> bytes:
    """What the evidence of a step carries."""
    return labelled("sealift host vectors", step.encode())


def shown(step: str, evidence: Evidence, path: str = "") -> dict[str, Any]:
    """A step as it is written down. `path`: what the bad act touched."""
    body = TpmBody.parse(evidence.body)
    listed = parse_list(body.ima_list)
    entries = [listed.entry(number) for number in range(len(listed))]
    return {
        "step": step,
        "bound": bound(step).hex(),
        "sha256": evidence.digest.to_text(),
        "evidence": json.loads(evidence.body),
        "expected": {
            "refused_path": path,
            "ima": [f"{each.digest.hex()} {each.path}" for each in entries],
        },
    }


def steps(guest: Guest) -> list[dict[str, Any]]:
    """Boot; a measured bundle and nothing new; then each bad act, only what is new."""
    last = guest.collect(bound("boot"))
    found = [shown("boot", last)]
    guest.measure(RuntimeEvent("module", codec.encode({"name": "recipe"})))
    last = guest.continue_from(last, bound("runtime-event"))
    found.append(shown("runtime-event", last))
    for act in ACTS:
        path = guest.misbehave(act)
        last = guest.continue_from(last, bound(act))
        found.append(shown(act, last, path))
    return found


def written(references: ReferenceValues) -> dict[str, Any]:
    """What a verifier compares with; not in our own form, which grows."""
    tpm = references.tpm
    assert tpm is not None
    assert tpm.ima is not None
    plain: dict[str, Any] = codec.to_plain(
        {
            "enroller": references.enrollers[0],
            "root": tpm.roots[0].key,
            "endorsement_key": tpm.endorsement_keys[0],
            "pcrs": {number: values[0] for number, values in tpm.pcrs.items()},
            "allow": {path: values[0] for path, values in tpm.ima.allow.items()},
        }
    )
    return plain


def generate() -> dict[str, Any]:
    """Boot it and collect everything."""
    sys.path.insert(0, str(ROOT))
    from tests.sim.guest import guest_host, now_s

    with guest_host() as host:
        taken = steps(host.guest)
        references: ReferenceValues = host.references
        manifest = host.guest.image.manifest
    qemu = subprocess.run(
        ["qemu-system-x86_64", "--version"], capture_output=True, text=True, check=True
    )
    return {
        "note": NOTE,
        "at_s": now_s(),
        "emulator": qemu.stdout.splitlines()[0],
        "kernel": manifest.kernel,
        "packages": codec.to_plain(manifest.packages),
        "references": written(references),
        "steps": taken,
    }


if __name__ == "__main__":
    TARGET.write_text(json.dumps(generate(), indent=1, sort_keys=True) + "\n")
