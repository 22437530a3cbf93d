"""A line of agreements: who must have signed a successor before it binds anybody.

The first agreement needs everybody. A successor carries the line before it, back to the
first, and needs what the board of its predecessor asks for: so many members, and
everybody with a veto. Whatever names a single owner (its keys, its resources and their
rules, what becomes of its rows) changes only with that owner's own signature, by the key
that it had before: no threshold rewrites an owner's rule (rule H7). Pure.
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
    """Who stands behind the last agreement of a line.

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
        StaleError: ``agreement-line``: it does not hang together.
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
            "the agreement comes without the line before it",
            why=f"it is number {first.number}",
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
    """Check that every signature that is there fits; some may be missing.

    Raises:
        IntegrityError: ``agreement-altered``, naming whose signature does not fit.
        MalformedError: if somebody signed who is no party.
    """
    names = {party.name for party in link.agreement.parties}
    strangers = sorted((link.signatures.keys() | link.former.keys()) - names)
    if strangers:
        raise MalformedError(
            "a signature by somebody who is no party",
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
            "the agreement does not follow the one before",
            why=f"{after.name} {after.number} after {before.name} {before.number}",
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
            "the agreement is not signed by everybody",
            why=f"{', '.join(missing)} missing",
            code="agreement-unsigned",
        )


def _require_amended(before: Agreement, link: SignedLink, left: frozenset[str]) -> None:
    """Everybody signed whom the predecessor, and each owner's own part, ask for."""
    if before.board is None:
        _require_everybody(link, left)
    else:
        _require_board(before, link, left)
    for party in before.parties:
        _require_own_part(party, before, link, left)
    for party in link.agreement.parties:
        if own_part(before, party.name) is None:
            _require_signed(party.name, link, "it is new", "owner-part-changed")


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
            why=f"{', '.join(agreed) or 'nobody'} did; the agreement before asks for "
            f"{board.threshold} of {', '.join(board.members)}",
            code="board-unsigned",
        )


def _require_own_part(
    party: Party, before: Agreement, link: SignedLink, left: frozenset[str]
) -> None:
    """What names one party is as before, or that party itself signed the change."""
    part = own_part(link.agreement, party.name)
    if part is None:
        if party.name not in left:
            raise PolicyError(
                f"{party.name} was left out without having left", code="party-removed"
            )
        return
    if part == own_part(before, party.name):
        return
    _require_signed(
        party.name, link, "what belongs to it changed", "owner-part-changed"
    )
    if link.agreement.party(party.name).sign != party.sign:
        _require_former_key(party, link)


def _require_signed(name: str, link: SignedLink, why: str, code: str) -> None:
    if name not in link.signatures:
        raise PolicyError(
            f"{name} has not signed the successor",
            why=why,
            fix=f"Have {name} run `sealift agreement sign`; nobody can sign for it",
            code=code,
        )


def _require_former_key(party: Party, link: SignedLink) -> None:
    """A new key speaks for a party only if the old one says so."""
    if party.name not in link.former:
        raise PolicyError(
            f"the key of {party.name} changed without a signature by the one before",
            why="others could have put a key of theirs in its place",
            code="key-change-unsigned",
        )
    message = encode(link.agreement)
    _verify(party.name, party.sign, message, link.former[party.name])


def _verify(name: str, key: PublicKey, message: bytes, signature: bytes) -> None:
    try:
        key.verify(Label.AGREEMENT, message, signature)
    except AuthenticationError:
        raise IntegrityError(
            f"the signature of {name} does not fit this agreement",
            why="it was altered after it was signed, or another key signed it",
            code="agreement-altered",
        ) from None


def find_speaker(signed: SignedStatement, links: Sequence[SignedLink]) -> Party:
    """The party that says it, with a key that no agreement of the line replaced (rule N7).

    Raises:
        IntegrityError: ``statement-altered``: nobody of that name signed it.
        StaleError: ``former-key``: it did, with a key that was changed since.
    """
    parties = [party for link in links for party in link.agreement.parties]
    signer = find_signer(signed, parties)
    if signer.sign not in _lasting_keys(signer.name, links):
        raise StaleError(
            f"a statement that {signer.name} signed with a former key",
            why="an agreement of the line names another one, which speaks for it now",
            code="former-key",
        )
    return signer


def current(
    statements: Iterable[SignedStatement], links: Sequence[SignedLink]
) -> Iterator[tuple[SignedStatement, Party]]:
    """What counts of what is said of this line, with who says it.

    What a party said with a key that it changed since is passed over: it may lie there
    in good faith.

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
    """Who left, by keys that the line named up to ``place``.

    A key that a later agreement brings says nothing about how that one came into force:
    else whoever writes it could take a party out and speak for it.
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
                f"{each.party} vetoed {agreement.name}, number {agreement.number}",
                why="what was vetoed once binds nobody, and nothing can follow it",
                code="agreement-vetoed",
            )
    board = agreement.effective_board
    said = {each.party for each in about if each.kind == "cancel"} & set(board.members)
    if len(said) >= board.threshold:
        raise PolicyError(
            f"the line {agreement.name} was cancelled",
            why=f"by {', '.join(sorted(said))}",
            code="agreement-cancelled",
        )
