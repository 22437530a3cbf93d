"""The receipt of a run: one signed document over all that shows what the run was.

A DSSE envelope around an in-toto statement, by the first accelerator's instance key. Its
subject is the model; its predicate carries the signed agreement, the job's settings, the
manifest with the evidence that binds that key, what each owner's broker logged before a key
left (signed by that owner), what rows were used for, and the account that each accelerator
signed itself. Who has it needs nothing of the run to check it again, but collateral of its
own side, where evidence needs some (rule H13). What the accounts of several parties agree
on is verified; what one of them alone says is printed as said by that one (rule O4).
Source: spec/release.md section Receipt of a run; in-toto attestation framework, v1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from sealift.attest.level import Level
from sealift.codec import decode, encode, from_plain, parse, to_plain
from sealift.crypto.envelope import Envelope, sign_envelope
from sealift.crypto.sign import PublicKey, SigningKey
from sealift.errors import (
    QUOTED_COLUMNS,
    AuthenticationError,
    IntegrityError,
    MalformedError,
    PolicyError,
    SealiftError,
    UnavailableError,
    quote_foreign,
)
from sealift.ids import Digest
from sealift.release.agreement import part_for
from sealift.release.agreement.explain import KEPT_OUT
from sealift.release.agreement.phrases import count, say_time
from sealift.release.agreement.signed import SignedAgreement, VerifiedAgreement
from sealift.release.agreement.statements import CLOCKS_DIFFER_S
from sealift.release.agreement.terms import LAST_S
from sealift.release.log.entries import LogEntry, Logged, TreeHead, verify_head
from sealift.release.log.heads import log_owner
from sealift.train.output.accounts import (
    AccountSigner,
    SignedAccount,
    Uses,
    account_signers,
    demand_uses,
    digest_result,
    own_parties,
    verify_accounts,
)
from sealift.train.output.manifest import RunManifest, judge_manifest
from sealift.train.output.privateterms import private_terms
from sealift.train.plans import Coverage
from sealift.travel.settings import JobSettings, require_agreed
from sealift.travel.visit.messages import MAX_RUN_RECEIPT_BYTES

MEDIA_TYPE: Final = "application/vnd.in-toto+json"
STATEMENT: Final = "https://in-toto.io/Statement/v1"
PREDICATE: Final = "urn:sealift:run-receipt:2"
FORMER: Final = "urn:sealift:run-receipt:1"  # one accelerator filled it for everybody
QUOTED: Final = 200  # characters of what the ranks chose together
NO_RELEASE: Final = "no-release"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReceipt:
    """What is signed of one run.

    Attributes:
        made_at_s: Seconds since 1970 by the first accelerator's clock.
        agreement: The whole signed line.
        settings: Of the job, as the orchestrator asked for them.
        manifest: What the run was; names and binds the key that signs this.
        released: For each resource, what its owner's broker logged before the key left.
        accounts: What each accelerator signed of the run, in their order.
        uses: What rows were used for.
        distinct_rows: Different rows that the model was trained on, by data owner.
        checkpoints: How many counted so far in the owners' logs.
        subject: SHA-256 of ``model.safetensors``, or of ``statistics.json`` without one.
    """

    made_at_s: int
    agreement: SignedAgreement
    settings: JobSettings
    manifest: RunManifest
    accounts: tuple[SignedAccount, ...]
    released: tuple[Logged, ...]
    uses: Uses
    distinct_rows: dict[str, int]
    checkpoints: int
    subject: Digest

    @property
    def subject_name(self) -> str:
        """The file that the run made."""
        made_model = self.manifest.weights is not None
        return "model.safetensors" if made_model else "statistics.json"

    @property
    def job(self) -> str:
        """Name of the job."""
        return self.manifest.job

    @property
    def result(self) -> dict[str, Digest]:
        """What each of its accounts must say, too."""
        return digest_result(
            self.manifest,
            model_file=self.subject,
            settings=self.settings,
            distinct_rows=self.distinct_rows,
        )


@dataclass(frozen=True, slots=True)
class Line:
    """Something of a receipt that was checked, and what it says."""

    name: str
    said: str


def sign_run(receipt: RunReceipt, instance: SigningKey) -> bytes:
    """The envelope, by the key that the manifest binds."""
    parts = to_plain(receipt)
    parts.pop("subject")
    digests = {name: Digest.of(encode(part)).to_text() for name, part in parts.items()}
    statement = {
        "_type": STATEMENT,
        "subject": [
            {
                "name": receipt.subject_name,
                "digest": {"sha256": receipt.subject.raw.hex()},
            }
        ],
        "predicateType": PREDICATE,
        "predicate": {"digests": digests, **parts},
    }
    return sign_envelope(MEDIA_TYPE, encode(statement), instance)


def open_run(raw: bytes) -> RunReceipt:
    """The receipt, if the key that it names signed it; nobody's word is judged yet.

    Raises:
        MalformedError: it does not parse; with the field.
        IntegrityError: ``run-receipt-altered``, with the part that was altered.
    """
    envelope = decode(Envelope, raw, max_bytes=MAX_RUN_RECEIPT_BYTES)
    if envelope.payloadType != MEDIA_TYPE:
        raise _bad("payloadType")
    plain = parse(envelope.payload.raw, max_bytes=MAX_RUN_RECEIPT_BYTES)
    parts, subject = _parts(plain)
    digests = parts.pop("digests")
    for name in sorted(parts.keys() | digests.keys()):
        digest = Digest.of(encode(parts.get(name))).to_text()
        if digests.get(name) != digest:
            raise _altered(name)
    receipt: RunReceipt = from_plain(RunReceipt, {**parts, "subject": subject})
    try:
        envelope.verify(receipt.manifest.instance)
    except AuthenticationError:
        raise _altered("signature") from None
    if plain["subject"][0]["name"] != receipt.subject_name:
        raise _bad("subject.name")
    if not 0 <= receipt.made_at_s <= LAST_S:
        raise _bad("made_at_s")
    return receipt


def demand_of(
    raw: bytes, verified: VerifiedAgreement, *, costs: bool = True, **known: object
) -> bytes:
    """Return a receipt of a run that came, if it holds now and says what we have ourselves.

    Args:
        raw: As it came.
        verified: The agreement.
        costs: Whether privacy budgets are compared. Who took part asked the brokers, and
            spares itself the accountant, which loads for seconds.
        known: Attributes of the receipt as this party has them: ``job`` and others.

    Raises:
        SealiftError: as ``open_run`` and ``verify_run``, or ``receipt-differs``. The
            line names the party whose accelerator wrote it.
    """
    author = "the first accelerator"
    try:
        receipt = open_run(raw)
        author = _signers(receipt, verified)[0].party
        for _checked in verify_run(receipt, verified, costs=costs):
            pass
        for name, own in known.items():
            if getattr(receipt, name) != own:
                raise PolicyError(
                    f"its {name} differs from what this party has",
                    code="receipt-differs",
                )
    except SealiftError as error:
        error.what = (
            f"{author} wrote a receipt of the run that is refused: {error.what}"
        )
        raise
    return raw


def _parts(plain: Any) -> tuple[dict[str, Any], str]:
    """The predicate's parts, and the subject's digest as text of ours."""
    match plain:
        case {
            "_type": str(kind),
            "subject": [{"name": str(), "digest": {"sha256": str(hexed)}}],
            "predicateType": str(about),
            "predicate": {"digests": dict()} as parts,
        } if (len(plain), kind, about) == (4, STATEMENT, PREDICATE):
            return dict(parts), _from_hex(hexed).to_text()
        case {"predicateType": str(about)} if about == FORMER:
            raise MalformedError(
                "the receipt has format version 1, which only one accelerator signed",
                field="predicateType",
                code="old-run-receipt",
            )
    raise _bad("statement")


def _from_hex(text: str) -> Digest:
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        raise _bad("subject.digest") from None
    if raw.hex() != text:
        raise _bad("subject.digest")
    return Digest(raw)


@contextmanager
def _line(name: str) -> Iterator[None]:
    try:
        yield
    except SealiftError as error:
        error.what = f"{name}: {error.what}"
        raise


def verify_run(
    receipt: RunReceipt, verified: VerifiedAgreement, *, costs: bool = True
) -> Iterator[Line]:
    """Check line by line; each is yielded once it holds.

    Args:
        receipt: As ``open_run`` gave it.
        verified: Its agreement, equipped to judge evidence at the time of the run.
        costs: Whether what private steps cost is computed, and compared with budgets.

    Raises:
        SealiftError: what does not hold, after the line's name.
    """
    for name, check in _CHECKS.items():
        if name == "privacy" and not costs:
            continue
        with _line(name):
            said = check(receipt, verified)
        if said:
            yield Line(name, said)


def _signers(receipt: RunReceipt, verified: VerifiedAgreement) -> list[AccountSigner]:
    return account_signers(receipt.manifest.plan, receipt.manifest.ranks, verified)


def _said_by(
    receipt: RunReceipt, verified: VerifiedAgreement, *, all_: bool = True
) -> str:
    """Whose word it is: several parties', as accounts show, or that of one alone."""
    names = [each.party for each in _signers(receipt, verified)]
    if all_ and own_parties(receipt.manifest.plan, verified):
        return f"each signed by its party: {', '.join(names)}"
    return f"stated only by {', '.join(names if all_ else names[:1])}"


def _accounts(receipt: RunReceipt, verified: VerifiedAgreement) -> str:
    """What each accelerator signed itself is what the receipt says."""
    manifest, signers = receipt.manifest, _signers(receipt, verified)
    agreed = verified.agreement.training_rule
    require_agreed(receipt.settings, manifest.plan, agreed)  # rule O1
    accounts = verify_accounts(receipt.accounts, signers, receipt.result, verified)
    demand_uses(
        accounts, receipt.uses, (Digest.of(encode(each)) for each in receipt.released)
    )
    for each in accounts:
        if each.head is not None:
            _demand_shown(each.head.body, receipt)
    before = accounts[0].passes_before
    restarted = len(accounts) > 1 and (before > 0) is not (manifest.resumed > 0)
    if restarted or not (before or manifest.rows == sum(a.rows for a in accounts)):
        raise PolicyError(
            "the receipt has other rows or restarts than the accounts",
            code="account-differs",
        )
    said = f"settings, model, steps, numbers and rows: {_said_by(receipt, verified)}"
    alone = _said_by(receipt, verified, all_=False)
    return said + (
        f"; {count(before, 'round')} before a restart: {alone}" if before else ""
    )


def _time(receipt: RunReceipt, verified: VerifiedAgreement) -> str:
    """It was made after all logs' heads, and not after what others signed (rule O5)."""
    made, now = receipt.made_at_s, int(verified.equipment.clock())
    heads = [each.body.at_s for each in receipt.manifest.heads]
    ends = [each.body.at_s for each in receipt.accounts[1:]]
    latest = min(max(ends, default=now), now)
    early = made < max(heads, default=made) - CLOCKS_DIFFER_S
    if early or made > latest + CLOCKS_DIFFER_S:
        raise PolicyError(
            f"the receipt has the date {say_time(made)}",
            why=f"an owner's log has an entry of {say_time(max(heads))}"
            if early
            else f"other parties signed their accounts before {say_time(latest)}",
            code="receipt-time",
        )
    verified.agreement.require_time(made)
    return f"{say_time(made)}; {_said_by(receipt, verified, all_=False)}"


def _agreement(receipt: RunReceipt, verified: VerifiedAgreement) -> str:
    if receipt.agreement.agreement != verified.agreement:
        raise PolicyError(
            "the receipt belongs to another agreement", code="other-agreement"
        )
    agreement = verified.agreement
    signers = ", ".join(sorted(verified.signers))
    return (
        f"{agreement.name} number {agreement.number}, signed by {signers}, "
        f"{verified.digest}"
    )


def _compared(_receipt: RunReceipt, verified: VerifiedAgreement) -> str:
    compared = verified.agreement.compared
    if compared is None:
        return "no meeting took place; the keys are those of the agreement"
    others = [n for n in verified.agreement.data_owners if n not in compared]
    said = f"compared by {', '.join(compared)}" if compared else "no"
    return (
        f"{said}; not compared by {', '.join(others)}" if compared and others else said
    )


def _code(_receipt: RunReceipt, verified: VerifiedAgreement) -> str:
    code = verified.agreement.code
    return f"{count(len(code.files), 'file')}, {code.digest}"


def _tables(_receipt: RunReceipt, verified: VerifiedAgreement) -> str:
    return "; ".join(
        f"{each.name} of {each.owner}, {each.rows} rows, {each.content}"
        for each in verified.agreement.resources
    )


def _evidence(receipt: RunReceipt, verified: VerifiedAgreement) -> str:
    manifest = judge_manifest(receipt.manifest, verified)
    kept = KEPT_OUT[Level(manifest.level.partition(" ")[0])]
    at = say_time(int(verified.equipment.clock()))
    return f"{manifest.evidence.kind}, level {manifest.level}: {kept}; judged for {at}"


def _released(receipt: RunReceipt, verified: VerifiedAgreement) -> str:
    """Each owner's own word: what it logged before its key left, for whom, at which level."""
    released, manifest = set(), receipt.manifest
    for each in receipt.released:
        released.add(demand_release(each, verified, manifest.ranks, manifest.level))
        _demand_shown(each.head.body, receipt)
    used = {each.resource for each in receipt.uses.tables}
    if missing := sorted(used - released):
        raise IntegrityError(
            f"the rows of {missing[0]} were used, but its key was not released",
            code=NO_RELEASE,
        )
    return (
        f"{count(len(released), 'key')}, each logged by its owner before it was "
        f"released: {', '.join(sorted(released))}"
    )


def demand_release(
    release: Logged,
    verified: VerifiedAgreement,
    instances: Sequence[PublicKey],
    level: str,
) -> str:
    """The resource whose key its owner released, by the owner's own log.

    Args:
        release: As the owner's log has it.
        verified: The agreement.
        instances: Keys of accelerators, one of which must have got it.
        level: That the release must have been at.

    Raises:
        RefusedError: if the entry says something else.
    """
    owner = log_owner(release.head, verified)
    entry = release.verify(owner.sign, "a release")
    resource = verified.resource(getattr(entry, "resource", ""))
    if not isinstance(entry, LogEntry) or entry.kind != "release":
        raise PolicyError("an entry of a log is not a release", code=NO_RELEASE)
    if resource.owner != owner.name or entry.agreement != verified.digest:
        raise PolicyError(
            "the release belongs to another resource or agreement", code=NO_RELEASE
        )
    if entry.instance not in instances:
        raise PolicyError(
            "a key was released to another accelerator instance", code=NO_RELEASE
        )
    if entry.level != level:
        raise PolicyError(
            f"{resource.name} was released at level {entry.level}", code="other-level"
        )
    return resource.name


def _demand_shown(head: TreeHead, receipt: RunReceipt) -> None:
    """A head of a log is among the manifest's, or before it, and does not contradict it."""
    shown = [each.body for each in receipt.manifest.heads if each.body.log == head.log]
    if not shown or shown[0].size < head.size:
        raise PolicyError(
            "no log head in the manifest covers this release", code="head-missing"
        )
    if shown[0].size == head.size and shown[0].root != head.root:
        raise IntegrityError("an owner has two different logs", code="log-forked")


def _used(receipt: RunReceipt, verified: VerifiedAgreement) -> str:
    places = [(use.resource, use.purpose) for use in receipt.uses.tables]
    if places != sorted(set(places)):
        raise PolicyError("a table is listed twice", code="bad-rows")
    for use in receipt.uses.tables:
        resource = verified.resource(use.resource)
        if min(use.rows, use.sealed_bytes, use.nonzero_bytes) < 0:
            raise PolicyError("a number is negative", code="bad-rows")
        if part_for(use.purpose) != resource.part:
            raise PolicyError(
                "rows were used for another purpose than the agreement allows",
                code="bad-rows",
            )
        if use.cargo_bytes != use.rows * resource.row_bytes or use.visits < 1:
            raise PolicyError(
                "the number of bytes does not match the number of rows", code="bad-rows"
            )
        if use.nonzero_bytes or use.scrubbed_bytes < use.cargo_bytes:
            raise PolicyError("the memory was not overwritten completely", code="scrub")
    uses = receipt.uses.tables
    if sum(each.visits for each in uses) != len(set(receipt.uses.receipts)):
        raise PolicyError(
            "the number of receipts differs from the number of uses", code="bad-rows"
        )
    times = count(sum(each.visits for each in uses), "time")
    sealed = sum(each.sealed_bytes for each in uses)
    scrubbed = sum(each.scrubbed_bytes for each in uses)
    return (
        f"rows were used {times}, with a receipt for each use; {sealed:,} sealed bytes "
        f"were transferred; {scrubbed:,} bytes were overwritten and read back as zero; "
        f"{_said_by(receipt, verified)}"
    )


def _coverage(receipt: RunReceipt, verified: VerifiedAgreement) -> str:
    agreement, manifest = verified.agreement, receipt.manifest
    owners = agreement.data_owners
    if set(receipt.distinct_rows) != set(owners) or set(manifest.visits) != set(owners):
        raise PolicyError(
            "the owners differ from the agreement's owners", code="bad-rows"
        )
    receipted = _trained(receipt, verified)
    said = []
    for owner in owners:
        trained = (r for r in agreement.resources_of(owner) if r.part == "train")
        rows, distinct = sum(r.rows for r in trained), receipt.distinct_rows[owner]
        if not 0 <= distinct <= rows:
            raise PolicyError(
                "more distinct rows than the tables contain", code="bad-rows"
            )
        visits, kept = manifest.visits[owner], receipted[owner]
        if visits < 0 or (visits and not kept):
            raise PolicyError(
                "the model was trained on rows without a receipt", code="bad-rows"
            )
        less = f", {kept} of them with a receipt" if kept < visits else ""
        if visits < receipt.settings.training.epochs:
            less = f" in {receipt.settings.training.epochs:,} planned epochs{less}"
        said.append(f"{owner} {distinct} of {rows} rows, {count(visits, 'time')}{less}")
    if manifest.weights is not None:
        rule = agreement.output_rule
        Coverage(manifest.visits, receipt.distinct_rows).require(rule)
    return "; ".join(said)


def _privacy(receipt: RunReceipt, verified: VerifiedAgreement) -> str:
    """What private steps bound, and that no budget paid for more than it allows."""
    terms = private_terms(verified.agreement, receipt.manifest.visits)
    if terms is None:
        return ""
    with suppress(UnavailableError):  # then each line says that nothing was computed
        terms.require_within()
    return "; ".join((*terms.say(), _said_by(receipt, verified)))


def _trained(receipt: RunReceipt, verified: VerifiedAgreement) -> Counter[str]:
    """How often each owner's rows were trained on, by receipts of it."""
    visits: Counter[str] = Counter()
    for use in receipt.uses.tables:
        if use.purpose == "train":
            visits[verified.resource(use.resource).owner] += use.visits
    return visits


def _together(receipt: RunReceipt, verified: VerifiedAgreement) -> str:
    """What only the accelerator that wrote it says, about itself."""
    manifest = receipt.manifest
    where = f"{_quote(manifest.sandbox)}, on {_quote(manifest.device)}"
    said = [f"plan {manifest.plan}", f"{where}, by {_quote(manifest.software)}"]
    if manifest.collectives:
        why = _quote(manifest.collectives, QUOTED)
        said.append(f"{len(manifest.ranks)} ranks: {why}")
    said.append(_said_by(receipt, verified, all_=False))
    if manifest.traces is not None:
        said.append(
            f"every product of the servers was checked, traces {manifest.traces}"
        )
    return "; ".join(said)


def _quote(text: str, limit: int = QUOTED_COLUMNS) -> str:
    """Text of others, without what parts a line's words: each part may stand on its own."""
    return quote_foreign(text, limit).replace("; ", ";")


def _checkpoints(receipt: RunReceipt, verified: VerifiedAgreement) -> str:
    resumed = count(receipt.manifest.resumed, "time")
    if receipt.checkpoints < 0 or receipt.manifest.resumed < 0:
        raise _bad("checkpoints")
    before = receipt.settings.training.continues
    if before and not receipt.manifest.resumed:
        raise PolicyError(
            f"the run was to go on from job {before}, and began anew",
            code="account-differs",
        )
    said = (
        f"{receipt.checkpoints} were recorded; the run was resumed {resumed} from a "
        "checkpoint"
    )
    if before:
        said += f", at first from the last one of job {before}, whose uses of rows are counted here as well"
    return f"{said}; {_said_by(receipt, verified, all_=False)}"


def _model(receipt: RunReceipt, verified: VerifiedAgreement) -> str:
    weights = receipt.manifest.weights
    of = f", weights {weights}" if weights is not None else ""
    by = _said_by(receipt, verified)
    return f"{receipt.subject_name}, {receipt.subject}{of}; {by}"


def _heads(receipt: RunReceipt, verified: VerifiedAgreement) -> str:
    said = []
    for signed in receipt.manifest.heads:
        head = verify_head(signed)
        said.append(f"{log_owner(signed, verified).name} {head.size} entries")
    return "; ".join(said)


_CHECKS: Final[Mapping[str, Any]] = {
    "agreement": _agreement,
    "parties compared": _compared,
    "code": _code,
    "data": _tables,
    "evidence": _evidence,
    "keys released": _released,
    "use of rows": _used,
    "coverage": _coverage,
    "privacy": _privacy,
    "accounts": _accounts,
    "run": _together,
    "checkpoints": _checkpoints,
    "model": _model,
    "log heads": _heads,
    "time": _time,
}


def _altered(part: str) -> IntegrityError:
    return IntegrityError(
        f"{part}: the receipt was altered",
        why="it differs from what the accelerator signed",
        code="run-receipt-altered",
    )


def _bad(field: str) -> MalformedError:
    return MalformedError(
        "the file is not the receipt of a run", field=field, code="bad-run-receipt"
    )
