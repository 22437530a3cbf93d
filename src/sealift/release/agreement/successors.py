"""A line of agreements: who must sign a successor before it is valid.

All parties must sign the first agreement. A successor contains all its predecessors and
needs the signatures that the board of its direct predecessor requires: a number of
members, and every member with a veto. A part that names a single owner (its keys, its
resources and their rules, the use of its rows) changes only with that owner's signature,
made with the key that it had before: no majority changes an owner's rule (rule H7). Pure.
Source: spec/release.md sections Amendments and Statements.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from sealift.codec import encode
from sealift.crypto.keys import Label
from sealift.crypto.sign import PublicKey
from sealift.errors import (
    AuthenticationError,
    IntegrityError,
    MalformedError,
    PolicyError,
    StaleError,
)
from sealift.ids import Digest
from sealift.release.agreement import Agreement, Party
from sealift.release.agreement.statements import SignedStatement, Statement, find_signer


@dataclass(frozen=True, slots=True)
class SignedLink:
    """One agreement of a line with its signatures, not verified yet.

    Attributes:
        signatures: By party.
        former: Of parties whose key changed: by the key that they had before.
    """

    agreement: Agreement
    signatures: dict[str, bytes] = field(default_factory=dict)
    former: dict[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Backing:
    """Who signed the last agreement of a line.

    Attributes:
        signers: Parties that signed it themselves.
        left: Parties that left the line.
        past: Digests of the agreements before it, first agreement first.
    """

    signers: frozenset[str]
    left: frozenset[str]
    past: tuple[Digest, ...]


# What becomes of rows: no owner of any is overruled in it.
_OF_ROWS: Final = ("output", "travel", "training", "group", "servers")

# A statement, and the place in the line from which its signer's key counts.
_Said = tuple[Statement, int]


def verify_line(
    links: Sequence[SignedLink], statements: Iterable[SignedStatement] = ()
) -> Backing:
    """Check a whole line, first agreement first.

    Raises:
        PolicyError: ``agreement-unsigned``, ``board-unsigned``, ``veto-unsigned``,
            ``owner-part-changed``, ``party-removed``: whose signature is missing.
            ``agreement-vetoed``, ``agreement-cancelled``: it was ended.
        StaleError: ``agreement-line``: an agreement does not follow its predecessor.
        IntegrityError: ``agreement-altered`` or ``statement-altered``.
        MalformedError: somebody signed who is no party.
    """
    for link in links:
        verify_link(link)
    said = [
        (each.body, _since(signer, links))
        for each, signer in current(statements, links)
    ]
    # First: what was vetoed needs no more signatures.
    previous: Agreement | None = None
    for link in links:
        about = [each for each, _ in said if each.digest == link.agreement.digest]
        _refuse_ended(link.agreement, previous, about)
        previous = link.agreement
    first = links[0].agreement
    if first.number != 1:
        raise StaleError(
            "the agreement's predecessors are missing",
            why=f"its first agreement has number {first.number}",
            code="agreement-line",
        )
    _require_everybody(links[0], frozenset())
    for place, (before, after) in enumerate(pairwise(links)):
        require_follows(after.agreement, before.agreement)
        _require_amended(before.agreement, after, _left(said, place))
    return Backing(
        frozenset(links[-1].signatures),
        _left(said, len(links) - 1),
        tuple(link.agreement.digest for link in links[:-1]),
    )


def verify_link(link: SignedLink) -> None:
    """Check that every present signature is valid; some may be missing.

    Raises:
        IntegrityError: ``agreement-altered``, naming whose signature does not fit.
        MalformedError: if somebody signed who is no party.
    """
    names = {party.name for party in link.agreement.parties}
    strangers = sorted((link.signatures.keys() | link.former.keys()) - names)
    if strangers:
        raise MalformedError(
            "somebody signed who is not a party",
            why=strangers[0][:80],
            field="signatures",
            code="bad-agreement-file",
        )
    message = encode(link.agreement)
    for party in link.agreement.parties:
        if party.name in link.signatures:
            _verify(party.name, party.sign, message, link.signatures[party.name])


def require_follows(after: Agreement, before: Agreement) -> None:
    """Check that one agreement directly follows another.

    Raises:
        StaleError: ``agreement-line``, if it does not.
    """
    expected = (before.name, before.number + 1, before.digest)
    if (after.name, after.number, after.predecessor) != expected:
        raise StaleError(
            "the agreement does not follow its predecessor",
            why=f"{after.name} number {after.number} cannot follow {before.name} number {before.number}",
            code="agreement-line",
        )


def own_part(agreement: Agreement, name: str) -> bytes | None:
    """Everything in an agreement that names one party, in canonical bytes.

    None if it is no party. The order of lists counts only where it means something.
    """
    party = next((each for each in agreement.parties if each.name == name), None)
    if party is None:
        return None
    board, output = agreement.board, agreement.output
    resources = agreement.resources_of(name)
    return encode(
        {
            "party": party,
            "resources": resources,
            "rows": {each: getattr(agreement, each) for each in _OF_ROWS}
            if resources
            else None,
            "model_owner": agreement.model_owner == name,
            "operator": agreement.operator == name,
            "model_to": name in agreement.model_to,
            "approves": output is not None and name in output.approved_by,
            "member": board is not None and name in board.members,
            "veto": board is not None and name in board.veto,
        }
    )


def has_veto(agreement: Agreement, before: Agreement | None, name: str) -> bool:
    """Whether a party may veto: by the board of the agreement, or of the one before."""
    boards = [each.effective_board for each in (agreement, before) if each is not None]
    return any(name in board.veto for board in boards)


def _require_everybody(link: SignedLink, excused: frozenset[str]) -> None:
    names = [party.name for party in link.agreement.parties]
    missing = [name for name in names if name not in link.signatures.keys() | excused]
    if missing:
        raise PolicyError(
            "not every party has signed the agreement",
            why=f"there is no signature of {', '.join(missing)}",
            code="agreement-unsigned",
        )


def _require_amended(before: Agreement, link: SignedLink, left: frozenset[str]) -> None:
    """Require the signatures that the predecessor, and each owner's own part, need."""
    if before.board is None:
        _require_everybody(link, left)
    else:
        _require_board(before, link, left)
    for party in before.parties:
        _require_own_part(party, before, link, left)
    for party in link.agreement.parties:
        if own_part(before, party.name) is None:
            _require_signed(party.name, link, "it is a new party", "owner-part-changed")


def _require_board(before: Agreement, link: SignedLink, left: frozenset[str]) -> None:
    board = before.effective_board
    for name in board.veto:
        if name not in left:
            _require_signed(name, link, "it has a veto", "veto-unsigned")
    agreed = [
        name for name in board.members if name in link.signatures and name not in left
    ]
    if len(agreed) < board.threshold:
        raise PolicyError(
            "too few members of the board signed",
            why=f"{', '.join(agreed) or 'nobody'} signed; the predecessor "
            f"requires {board.threshold} of {', '.join(board.members)}",
            code="board-unsigned",
        )


def _require_own_part(
    party: Party, before: Agreement, link: SignedLink, left: frozenset[str]
) -> None:
    """Require that a party's own part is unchanged, or that the party signed the change."""
    part = own_part(link.agreement, party.name)
    if part is None:
        if party.name not in left:
            raise PolicyError(
                f"the successor removes {party.name}, which has not left",
                code="party-removed",
            )
        return
    if part == own_part(before, party.name):
        return
    _require_signed(
        party.name, link, "a part that belongs to it changed", "owner-part-changed"
    )
    if link.agreement.party(party.name).sign != party.sign:
        _require_former_key(party, link)


def _require_signed(name: str, link: SignedLink, why: str, code: str) -> None:
    if name not in link.signatures:
        raise PolicyError(
            f"{name} has not signed the successor",
            why=why,
            fix=f"{name} must run `sealift agreement sign`; nobody can sign for it",
            code=code,
        )


def _require_former_key(party: Party, link: SignedLink) -> None:
    """Require that a party's former key signed the change to a new key."""
    if party.name not in link.former:
        raise PolicyError(
            f"the key of {party.name} changed without a signature of its former key",
            why="somebody else could have replaced the key",
            code="key-change-unsigned",
        )
    message = encode(link.agreement)
    _verify(party.name, party.sign, message, link.former[party.name])


def _verify(name: str, key: PublicKey, message: bytes, signature: bytes) -> None:
    try:
        key.verify(Label.AGREEMENT, message, signature)
    except AuthenticationError:
        raise IntegrityError(
            f"the signature of {name} does not match this agreement",
            why="the agreement was changed after it was signed, or another key signed it",
            code="agreement-altered",
        ) from None


def find_speaker(signed: SignedStatement, links: Sequence[SignedLink]) -> Party:
    """The party that signed a statement with a key that is still in force (rule N7).

    Raises:
        IntegrityError: ``statement-altered``: nobody of that name signed it.
        StaleError: ``former-key``: it did, with a key that was changed since.
    """
    parties = [party for link in links for party in link.agreement.parties]
    signer = find_signer(signed, parties)
    if signer.sign not in _lasting_keys(signer.name, links):
        raise StaleError(
            f"{signer.name} signed its statement with a former key",
            why="a later agreement of the line names another key for it",
            code="former-key",
        )
    return signer


def current(
    statements: Iterable[SignedStatement], links: Sequence[SignedLink]
) -> Iterator[tuple[SignedStatement, Party]]:
    """The valid statements about this line, with the party that signed each.

    Statements signed with a former key are skipped: old files may be left in the folder.

    Raises:
        IntegrityError: ``statement-altered``.
    """
    for each in statements:
        if each.body.line == links[0].agreement.name:
            with suppress(StaleError):
                yield each, find_speaker(each, links)


def _lasting_keys(name: str, links: Sequence[SignedLink]) -> set[PublicKey]:
    """The last key of a party, and its last before each time that it left."""
    kept: set[PublicKey] = set()
    before: PublicKey | None = None
    for link in links:
        found = [each.sign for each in link.agreement.parties if each.name == name]
        if before is not None and not found:
            kept.add(before)
        before = found[0] if found else None
    return kept | {before} if before is not None else kept


def _since(signer: Party, links: Sequence[SignedLink]) -> int:
    known = (
        any(
            (party.name, party.sign) == (signer.name, signer.sign)
            for party in link.agreement.parties
        )
        for link in links
    )
    return list(known).index(True)


def _left(said: Sequence[_Said], place: int) -> frozenset[str]:
    """The parties that left, by keys that the line named up to ``place``.

    The keys of a later agreement do not count: otherwise whoever writes it could put a
    key of their own into it and declare with it that a party left.
    """
    return frozenset(
        each.party for each, since in said if each.kind == "leave" and since <= place
    )


def _refuse_ended(
    agreement: Agreement, before: Agreement | None, about: Sequence[Statement]
) -> None:
    for each in about:
        if each.kind == "veto" and has_veto(agreement, before, each.party):
            raise PolicyError(
                f"{each.party} vetoed agreement {agreement.name}, number {agreement.number}",
                why="a vetoed agreement is never valid, and no successor can follow it",
                code="agreement-vetoed",
            )
    board = agreement.effective_board
    said = {each.party for each in about if each.kind == "cancel"} & set(board.members)
    if len(said) >= board.threshold:
        raise PolicyError(
            f"all agreements named {agreement.name} were cancelled",
            why=f"{', '.join(sorted(said))} cancelled them",
            code="agreement-cancelled",
        )
