"""The code that runs, named by digest: file by file, and as a whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sealift.codec import encode
from sealift.crypto.hash import labelled
from sealift.ids import Digest
from sealift.release.agreement.consistency import inconsistent, require_ascii

BUNDLE_LABEL: Final = "sealift v1 code bundle"


@dataclass(frozen=True, slots=True)
class CodeBundle:
    """The code that runs: every file by its digest.

    Attributes:
        digest: ``bundle_digest(files)``.
        entry: Path of the recipe inside the bundle.
        files: Digest by path, ``/`` between the parts.
    """

    digest: Digest
    entry: str
    files: dict[str, Digest]

    def __post_init__(self) -> None:
        for name in self.files:
            require_ascii(name, "files")
        if self.entry not in self.files:
            raise inconsistent("the bundle has no such file", "entry")
        if self.digest != bundle_digest(self.files):
            raise inconsistent("the digest is not that of the files", "digest")


def bundle_digest(files: dict[str, Digest]) -> Digest:
    """One digest for a set of files: their paths and digests, in canonical form."""
    return Digest(labelled(BUNDLE_LABEL, encode(files)))
