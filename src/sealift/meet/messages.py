"""What crosses a meeting's session: the guest asks, and the host says what comes next.

Every message of a guest has one answer, which follows from the host's book alone: so either
side may start again at any point, and ask again. Source: spec/meeting.md section 4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, get_args

from sealift.codec import MAX_INTEGER
from sealift.crypto.identity import Card
from sealift.errors import MalformedError
from sealift.ids import MAX_RANKS, check_name
from sealift.meet.invitation import PROOF_BYTES
from sealift.meet.terms import (
    MAX_JOB_BYTES,
    Declaration,
    SignedCard,
    SignedConsent,
    Terms,
)
from sealift.release.agreement.signed import SignedAgreement

MAX_WHY: Final = 500
# The only reasons that others hear when a party leaves, by error code. They must not
# reveal anything else about its table.
REASONS: Final[Mapping[str, str]] = {
    "meeting-declined": "said no",
    "columns-differ": "its table does not fit what the host declares",
    "declared-too-often": "the host changed its declaration too often",
    "code-recipe": "it allows only a graph, and the recipe is a program",
    "recipe-kind": "the recipe is of another kind than the host's job says",
    "below-floor": "it has not allowed the exceptions that these terms need",
    "settings-differ": "the settings in the job differ from the host's declaration",
    "meeting-terms": "the documents that the host sent contradict each other",
    "no-memory": "its machine has too little free memory",
    "disk-full": "its disk is full",
    "cannot-write": "a file could not be written on its machine",
}
MAX_PROPOSED: Final = 200
ASSET_PIECE_BYTES: Final = 512 << 10
MAX_FILES_BYTES: Final = 512 << 10  # of a recipe: a message has 1 MiB


@dataclass(frozen=True, slots=True)
class Arrive:
    """First of each session: whose place it is, and that it was invited."""

    card: Card
    proof: bytes = field(repr=False)

    def __post_init__(self) -> None:
        _require_proof(self.proof)


@dataclass(frozen=True, slots=True)
class Ask:
    """What comes next?"""


@dataclass(frozen=True, slots=True)
class Bring:
    """The party's card."""

    card: SignedCard


@dataclass(frozen=True, slots=True)
class Agree:
    """Yes."""

    consent: SignedConsent


@dataclass(frozen=True, slots=True)
class Decline:
    """No, and why, as a name of ``REASONS``; the others are told."""

    code: str

    def __post_init__(self) -> None:
        if self.code not in REASONS:
            raise _malformed("the reason is unknown", "code")


@dataclass(frozen=True, slots=True)
class Sign:
    """The party's signature under the agreement that it computed itself."""

    signature: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Propose:
    """Categories that the host does not declare, each by the party's own yes; it may.

    Attributes:
        categories: By column.
    """

    categories: dict[str, tuple[str, ...]]

    def __post_init__(self) -> None:
        texts = [text for each in self.categories.values() for text in each]
        empty = not all(self.categories.values())
        longest = max(map(len, (*self.categories, *texts)), default=0)
        if empty or len(texts) > MAX_PROPOSED or longest > MAX_WHY:
            raise _malformed("the texts are empty, too many or too long", "categories")


@dataclass(frozen=True, slots=True)
class AskRun:
    """Which run comes next, of those that all have signed?

    Attributes:
        after: The last one that has ended for this party; 0 for none.
    """

    after: int


@dataclass(frozen=True, slots=True)
class AskAsset:
    """Bytes of a file of the recipe's ``assets/``, which the declaration names.

    Attributes:
        name: Its path in the recipe.
        start: Of the first byte.
    """

    name: str
    start: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= MAX_INTEGER:
            raise _malformed("an asset cannot be fetched from this position", "start")


FromGuest = Arrive | Ask | Bring | Agree | Decline | Sign | Propose | AskRun | AskAsset
FROM_GUEST: Final[tuple[type, ...]] = get_args(FromGuest)


@dataclass(frozen=True, slots=True)
class Welcome:
    """The host is who invited.

    Attributes:
        host: Its card.
        contested: Whether somebody else came with this invitation as well.
    """

    proof: bytes = field(repr=False)
    host: Card
    contested: bool

    def __post_init__(self) -> None:
        _require_proof(self.proof)


@dataclass(frozen=True, slots=True)
class Wait:
    """For these parties.

    Attributes:
        away: Parties that were connected, are not any more, and have not signed.
    """

    parties: tuple[str, ...]
    contested: bool
    away: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for names, what in ((self.parties, "parties"), (self.away, "away")):
            if len(names) > MAX_RANKS:  # a screen shows them again every second
                raise _malformed("there are too many parties", what)
            for each in names:
                check_name(each, what="party name")


@dataclass(frozen=True, slots=True)
class BringCard:
    """Your card is missing, or is about what is not declared any more.

    Attributes:
        files: The recipe's, by path; their digests stand in the declaration.
    """

    declaration: Declaration
    files: dict[str, bytes] = field(repr=False)

    def __post_init__(self) -> None:
        if sum(map(len, self.files.values())) > MAX_FILES_BYTES:
            raise _malformed(f"there are more than {MAX_FILES_BYTES:,} bytes", "files")


@dataclass(frozen=True, slots=True)
class Read:
    """The terms, to be read and signed."""

    terms: Terms


@dataclass(frozen=True, slots=True)
class Check:
    """What everybody brought: the agreement follows from it."""

    terms: Terms
    consents: dict[str, SignedConsent]


@dataclass(frozen=True, slots=True)
class Signed:
    """By everybody. The job begins."""

    agreement: SignedAgreement


@dataclass(frozen=True, slots=True)
class Over:
    """It comes to nothing: who, and why."""

    code: str
    party: str
    why: str

    def __post_init__(self) -> None:
        for each in filter(None, (self.code, self.party)):
            check_name(each, what="name")


@dataclass(frozen=True, slots=True)
class Run:
    """The run that the host has begun.

    Attributes:
        number: From 1.
        job: Its job file, which the agreement has to allow.
    """

    number: int
    job: str

    def __post_init__(self) -> None:
        if (
            not 1 <= self.number <= MAX_INTEGER
            or len(self.job.encode()) > MAX_JOB_BYTES
        ):
            raise _malformed("the number or the job is too large", "run")


@dataclass(frozen=True, slots=True)
class AssetPiece:
    """Bytes of an asset, fewer than asked for at its end.

    Attributes:
        total: Bytes of the whole file.
    """

    name: str
    start: int
    total: int
    content: bytes = field(repr=False)

    def __post_init__(self) -> None:
        end = self.start + len(self.content)
        if self.start < 0 or not end <= self.total <= MAX_INTEGER:
            raise _malformed("the piece does not lie in its file", "content")


FromHost = Welcome | Wait | BringCard | Read | Check | Signed | Over | Run | AssetPiece
FROM_HOST: Final[tuple[type, ...]] = get_args(FromHost)


def _require_proof(proof: bytes) -> None:
    if len(proof) != PROOF_BYTES:
        raise _malformed(f"the proof does not have {PROOF_BYTES} bytes", "proof")


def _malformed(what: str, field: str) -> MalformedError:
    return MalformedError(what, field=field, code="bad-meeting")
