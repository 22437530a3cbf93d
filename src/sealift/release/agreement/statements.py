"""What one party says of an agreement afterwards: veto, cancel, leave.

One format, signed by the party alone, kept in files beside the agreement. What a
statement leads to is decided in ``release/agreement/successors.py``; here is only who said it.
Source: spec/release.md section Statements.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final, Literal

from sealift.codec import MAX_INTEGER, decode, encode
from sealift.crypto.identity import Identity
from sealift.crypto.keys import Label
from sealift.crypto.sign import Form, SignedDocument, sign_document
from sealift.errors import (
    AuthenticationError,
    IntegrityError,
    MalformedError,
    StaleError,
)
from sealift.ids import Digest, check_name
from sealift.release.agreement import Agreement, Party
from sealift.release.files import read_whole, write_whole

StatementKind = Literal["veto", "cancel", "leave"]
SUFFIX: Final = ".statement.json"
MAX_STATEMENT_BYTES: Final = 1 << 14
MAX_STATEMENTS: Final = 1024
CLOCKS_DIFFER_S: Final = 300  # between two parties' machines
LEFT: Final = "owner-left"
# What statements lead to, and so ends keys that went out. Not a successor: those that went
# out under the agreement before stay good under it.
ENDS: Final = frozenset({"agreement-vetoed", "agreement-cancelled", LEFT})


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """What one party says of one agreement.

    Attributes:
        kind: ``veto``: this one never. ``cancel``: the line ends. ``leave``: nothing of
            mine is released in this line any more.
        line: Name of the line of agreements.
        number: Number of the agreement.
        digest: The agreement.
        party: Who says it.
        at_s: Seconds since 1970 by the party's clock.
    """

    FORM: ClassVar = Form(Label.STATEMENT, "statement")

    format: Literal["sealift-statement"] = "sealift-statement"
    version: Literal[1] = 1
    kind: StatementKind
    line: str
    number: int
    digest: Digest
    party: str
    at_s: int

    def __post_init__(self) -> None:
        check_name(self.line, what="agreement name")
        check_name(self.party, what="party name")
        for name in ("number", "at_s"):
            if not 0 <= getattr(self, name) <= MAX_INTEGER:
                raise MalformedError("out of range", field=name, code="bad-statement")

    @property
    def file_name(self) -> str:
        """A name that sorts by line, number and party."""
        return f"{self.line}-{self.number}-{self.party}-{self.kind}{SUFFIX}"


SignedStatement = SignedDocument[Statement]


def sign_statement(
    kind: StatementKind, agreement: Agreement, identity: Identity, at_s: float
) -> SignedStatement:
    """What ``identity`` says of an agreement.

    Raises:
        PolicyError: ``not-a-party`` or ``other-key``.
    """
    agreement.require_own_key(identity.name, identity.public_key)
    said = Statement(
        kind=kind,
        line=agreement.name,
        number=agreement.number,
        digest=agreement.digest,
        party=identity.name,
        at_s=int(at_s),
    )
    return sign_document(said, identity)


def find_signer(signed: SignedStatement, parties: Iterable[Party]) -> Party:
    """The first of these parties, of the statement's name, whose key signed it.

    Args:
        signed: What was found.
        parties: Of every agreement of the line: a key may have changed in it.

    Raises:
        IntegrityError: ``statement-altered``.
    """
    said = signed.body
    for party in parties:
        if party.name == said.party:
            try:
                signed.verify(party.sign)
            except AuthenticationError:
                continue
            return party
    raise IntegrityError(
        f"the statement in the name of {said.party} is not signed by {said.party}",
        why=f"{said.kind} of {said.line}, number {said.number}",
        code="statement-altered",
    )


def require_timely(said: Statement, now_s: float) -> None:
    """Refuse a statement from the future: none that its party makes later could replace it.

    Args:
        said: What was found.
        now_s: Seconds since 1970, by the clock of this machine.

    Raises:
        StaleError: ``statement-early``.
    """
    if said.at_s > now_s + CLOCKS_DIFFER_S:
        raise StaleError(
            f"the statement of {said.party} is dated in the future",
            why=f"{said.kind} of {said.line}, {said.at_s - now_s:.0f} s later than this machine's clock",
            code="statement-early",
        )


def save_statement(signed: SignedStatement, folder: Path) -> Path:
    """Write a statement under its own name; returns where.

    One about a rival of the same number, which has that name already, stays.

    Raises:
        UnavailableError: if it cannot be written.
    """
    path = folder / signed.body.file_name
    if path.exists() and _is_about_rival(path, signed.body):
        stem = signed.body.file_name.removesuffix(SUFFIX)
        path = folder / f"{stem}-{signed.body.digest.short}{SUFFIX}"
    write_whole(path, encode(signed))
    return path


def _is_about_rival(path: Path, said: Statement) -> bool:
    try:
        return load_statement(path).body.digest != said.digest
    except MalformedError:  # nobody's word
        return False


def load_statements(folder: Path, line: str) -> tuple[SignedStatement, ...]:
    """Every statement about a line that lies in a folder; nothing is verified yet.

    Raises:
        MalformedError: ``bad-statement``, if a file is none, or there are too many.
        UnavailableError: if one cannot be read.
    """
    paths = sorted(folder.glob(f"*{SUFFIX}"))
    if len(paths) > MAX_STATEMENTS:
        raise MalformedError(
            f"{folder} has too many statements",
            why=f"it has {len(paths)}; at most {MAX_STATEMENTS} are allowed",
            code="bad-statement",
        )
    found = (load_statement(path) for path in paths)
    return tuple(each for each in found if each.body.line == line)


def load_statement(path: Path) -> SignedStatement:
    """Read one statement.

    Raises:
        MalformedError: ``bad-statement``.
        UnavailableError: if it cannot be read.
    """
    raw = read_whole(path, MAX_STATEMENT_BYTES)
    try:
        return decode(SignedStatement, raw, max_bytes=MAX_STATEMENT_BYTES)
    except MalformedError as error:
        raise MalformedError(
            f"{path.name} is not a statement: {error.what}",
            why=error.why,
            field=error.field,
            offset=error.offset,
            code="bad-statement",
        ) from None
