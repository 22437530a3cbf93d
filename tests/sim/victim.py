"""An accelerator in a process of its own, for tests that look at it from outside.

The real `Accelerator` with the real recipe loader; `argv`: port, folder, mutant. The
attester's seed comes on stdin. Mutants lack one rule, so that a test can see it missed.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from sealift.attest.development import DevelopmentAttester
from sealift.codec import decode
from sealift.crypto.keys import SecretKey
from sealift.crypto.sign import SigningKey
from sealift.errors import SealiftError
from sealift.ids import Role
from sealift.release.agreement.signed import SignedAgreement, verify
from sealift.release.receipt import ScrubbedPart, ScrubSummary
from sealift.session.endpoint import Endpoint
from sealift.session.relay.client import RelayClient
from sealift.train.job.accelerator import Accelerator
from sealift.train.worker.executor import RecipeExecutor
from sealift.travel.accelerator import visit as room
from sealift.travel.visit.memory import CPUPool


def believe_the_flag() -> None:
    """A scrub that overwrites nothing and reports success; the memory is kept."""
    CPUPool.close = lambda self: None  # type: ignore[method-assign]
    room.scrub = lambda regions: ScrubSummary(  # type: ignore[assignment]
        tuple(ScrubbedPart(name, len(part), 0) for name, part in regions.items()),
        freed_memory_overwritten=True,
        verified=True,
    )


MUTANTS = {"no-read-back": believe_the_flag}


def main() -> int:
    """Serve one job."""
    port, folder, mutant = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    seed = SecretKey.from_bytes(bytes.fromhex(sys.stdin.readline()))
    MUTANTS.get(mutant, lambda: None)()
    agreement = verify(decode(SignedAgreement, (folder / "agreement").read_bytes()))
    attester = DevelopmentAttester(
        SigningKey(seed),
        role=Role.ACCELERATOR,
        code_bundle=agreement.agreement.code.digest,
    )
    endpoint = Endpoint(
        role=Role.ACCELERATOR,
        name="accelerator-0",
        agreement=agreement.digest,
        attester=attester,
    )
    files = {"recipe.py": (folder / "recipe.py").read_bytes()}
    with (
        RecipeExecutor(files, "recipe.py") as executor,
        RelayClient.dial(("127.0.0.1", port), "accelerator-0") as link,
    ):
        Accelerator(
            link,
            endpoint,
            agreement,
            plan="travel",
            executor=executor,
            clock=time.monotonic,
        ).serve()
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SealiftError as error:
        sys.stderr.write(f"{error.code}: {error}\n")
        sys.exit(error.exit_code)
