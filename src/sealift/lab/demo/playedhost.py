"""A host as any machine can stand in for one: a software TPM, and a kernel that we play.

For measurements and for `sealift attacks`. Quotes, keys, enrolment and lists are what a
real host shows; that the list names what really ran is played, and the TPM's maker is
our own, so it amounts to `development` and nothing else (rule H11).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sealift.attest.attesters.tpm.attester import TpmAttester, TpmSources
from sealift.attest.attesters.tpm.software import (
    Maker,
    manufacture,
    new_maker,
    running_tpm,
)
from sealift.attest.references.tpm import ImaReferences, TpmReferences, TpmRoot
from sealift.crypto.certificate import Certificate
from sealift.crypto.hash import sha256
from sealift.ids import Digest
from sealift.lab.demo.standinkernel import StandInKernel

_BOOT_PCRS: Final = range(10)


@dataclass(slots=True)
class PlayedKernel:
    """Measures what it is told ran, and remembers what of it is allowed.

    Attributes:
        allow: As reference values.
    """

    kernel: StandInKernel
    allow: dict[str, tuple[Digest, ...]] = field(default_factory=dict)

    @property
    def must(self) -> tuple[str, ...]:
        """The first that it was told: a host without it is another one."""
        return tuple(self.allow)[:1]

    def run(self, path: str, content: bytes, *, allowed: bool = True) -> None:
        """A file was executed."""
        if allowed:
            self.allow[path] = (*self.allow.get(path, ()), Digest.of(content))
        self.kernel.measure(path, sha256(content))


@dataclass(frozen=True, slots=True)
class RehearsedHost:
    """One running host.

    Attributes:
        maker: Vouches for its TPM.
        kernel: Measures what it is told.
    """

    maker: Maker
    attester: TpmAttester
    kernel: PlayedKernel

    def references(self) -> TpmReferences:
        """References that accept this host, and all that its kernel allowed so far."""
        certificate = Certificate(self.attester.enrolment_request().certificates[0])
        root = TpmRoot(
            name="a software TPM's maker",
            key=self.maker.root.spki_digest,
            operator="software",
        )
        return TpmReferences(
            roots=(root,),
            endorsement_keys=(certificate.spki_digest,),
            pcrs={str(number): (bytes(32),) for number in _BOOT_PCRS},
            ima=ImaReferences(allow=dict(self.kernel.allow), must=self.kernel.must),
            revocation="none",  # its maker is a program and revokes nothing
        )


@contextlib.contextmanager
def rehearsed_host(
    folder: Path, programs: Iterable[tuple[str, bytes]] = ()
) -> Iterator[RehearsedHost]:
    """A host that booted and ran ``programs``.

    Args:
        folder: Empty; for the TPM, its maker and the list. Its path must be short.
        programs: Path and content of files that ran since.

    Raises:
        UnavailableError: ``guest-tpm``, without swtpm.
    """
    maker = new_maker(folder / "maker")
    manufacture(maker, folder / "tpm")
    list_file = folder / "ima"
    list_file.write_bytes(b"")
    with (
        running_tpm(folder / "tpm", folder / "s") as place,
        TpmAttester(
            TpmSources(
                tpm=place,
                state=folder / "state",
                event_log=None,
                ima_list=list_file,
                issuers=tuple(each.der for each in maker.issuers),
            )
        ) as attester,
    ):
        kernel = PlayedKernel(StandInKernel(attester.client, list_file))
        kernel.kernel.boot()
        for path, content in programs:
            kernel.run(path, content)
        yield RehearsedHost(maker, attester, kernel)
