"""What the accelerator hands out: visit results and receipts, manifest and model.

Everything passes the agreement's output rule here, whatever the orchestrator asks for
(rule H8). A model that may not leave ends the job with the rule that forbids it. A
receipt is one visit's account in the form that the holder keeps (rule M4).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sealift import __version__
from sealift.codec import encode
from sealift.crypto.hash import sha256_of
from sealift.crypto.keys import SecretKey
from sealift.crypto.sign import PublicKey, sign_document
from sealift.data.schedule.visits import Stop
from sealift.errors import JobError, SealiftError, UsageError
from sealift.ids import Digest, VisitId
from sealift.release.agreement.signed import SignedAgreement, VerifiedAgreement
from sealift.release.agreement.statements import CLOCKS_DIFFER_S
from sealift.release.log.entries import Logged, SignedTreeHead
from sealift.release.receipt import (
    InstanceProof,
    Receipt,
    ScrubSummary,
    SignedReceipt,
    sign_receipt,
)
from sealift.session.endpoint import Endpoint
from sealift.session.session import Session
from sealift.train.loop.faults import RecipeError
from sealift.train.loop.held import Content, pieces_of
from sealift.train.loop.measures import joint_numbers
from sealift.train.loop.states import chain_tensors
from sealift.train.loop.statistics import (
    Statistic,
    check_totals,
    let_out_totals,
    totals_file,
)
from sealift.train.loop.trainer import Trainer
from sealift.train.output.accounts import (
    AccountSigner,
    RunAccount,
    SignedAccount,
    Uses,
    account_signers,
    digest_result,
    join_uses,
)
from sealift.train.output.approval import ModelName, split_output_key
from sealift.train.output.manifest import RunManifest, sign_manifest
from sealift.train.output.runreceipt import RunReceipt, sign_run
from sealift.train.output.sealing import (
    MODEL_NAME,
    OutputInfo,
    SealedModel,
    hidden_fault,
    key_name,
    seal_fault,
    seal_model,
    split_output,
    wrap_output_key,
)
from sealift.train.plans import Coverage, PlanName
from sealift.travel.accelerator.rules import VisitRules
from sealift.travel.accelerator.setup import LoadedVisit
from sealift.travel.settings import JobSettings
from sealift.travel.visit.lease import Lease
from sealift.travel.visit.messages import (
    RUN_RECEIPT_NAME,
    Failed,
    JobFinished,
    OfferVisit,
    Output,
    VisitEnded,
    send_message,
)


class Handout:
    """Applies the output rule for one job, and signs what it lets out.

    Args:
        agreement: Its output rule and model owner.
        endpoint: Ours; the instance key signs.
        job: Name of the job.
        rules: Counts verified visits.
        proof: Binds the instance key.
        heads: Heads of every log that released a key to us.
        plan: Of the job.
        settings: Of the job, as they were asked for.
        sandbox: What keeps the recipe in.
        device: Says where it computes.
        report: Adds to a visit's scrub what is said of a GPU's memory after the last task.
        ranks: Instance keys of all accelerators of the job; ours alone without.
        released: What owners' logs say of the keys that came.

    Attributes:
        instances: Keys of all accelerators of the job, in the order of ranks.
        heldout: Numbers of the latest epoch that was measured.
        resumed: How often it went on from a checkpoint.
        checkpoints: How many of the job counted.
        collectives: What its ranks chose, and why.
    """

    def __init__(
        self,
        agreement: VerifiedAgreement,
        endpoint: Endpoint,
        job: str,
        rules: VisitRules,
        *,
        proof: InstanceProof,
        heads: Callable[[], tuple[SignedTreeHead, ...]],
        plan: PlanName,
        settings: JobSettings,
        sandbox: str,
        device: Callable[[], str],
        report: Callable[[ScrubSummary], ScrubSummary] = lambda scrub: scrub,
        ranks: tuple[PublicKey, ...] = (),
        released: Callable[[], tuple[Logged, ...]] = tuple,
    ) -> None:
        self.instances = ranks or (endpoint.instance.public_key,)
        self._agreement = agreement
        self._rule = agreement.agreement.output_rule
        self._endpoint = endpoint
        self.job = job
        self._rules = rules
        self._proof = proof
        self._heads = heads
        self._plan = plan
        self._settings = settings
        self._sandbox, self._device = sandbox, device
        self._report = report
        self._released = released
        self._uses: list[Uses] = []
        self.resumed, self.checkpoints, self.collectives = 0, 0, ""
        self.heldout = HeldOutNumbers()
        self._noting = threading.Lock()  # visits end in several threads

    def note(self, offer: OfferVisit, ended: VisitEnded) -> VisitEnded:
        """Remember held-out numbers; return what the orchestrator may see."""
        if offer.purpose == "heldout" and ended.outcome == "verified":
            self.heldout.keep(offer, ended.metrics)
        hidden = self._rule.audience == "owner"
        return replace(ended, metrics={}, curve=()) if hidden else ended

    def receipt(
        self,
        lease: Lease,
        loaded: LoadedVisit,
        phases_s: Mapping[str, float],
        scrub: ScrubSummary,
    ) -> SignedReceipt:
        """The signed receipt of one visit, which counts in the run's."""
        signed = self.receipt_for(lease.visit, lease.stop, loaded, phases_s, scrub)
        self.use(Uses.of(signed))
        return signed

    def use(self, uses: Uses) -> None:
        """Rows were used, and receipts for it signed."""
        with self._noting:
            self._uses.append(uses)

    def uses(self) -> Uses:
        """All of it so far."""
        with self._noting:
            self._uses = [join_uses(self._uses)]
            return self._uses[0]

    def receipt_for(
        self,
        visit: VisitId,
        stop: Stop,
        loaded: LoadedVisit,
        phases_s: Mapping[str, float],
        scrub: ScrubSummary,
    ) -> SignedReceipt:
        """The signed receipt for rows that were used once."""
        resource = self._agreement.resource(stop.resource)
        receipt = Receipt(
            visit=visit,
            job=self.job,
            agreement=self._agreement.digest,
            holder=stop.holder,
            resource=stop.resource,
            purpose=stop.purpose,
            content=resource.content,
            first_row=stop.first_row,
            rows=stop.rows,
            cargo_bytes=stop.rows * resource.row_bytes,
            sealed_bytes=loaded.sealed_bytes,
            phases_s=dict(phases_s),
            buffers=self._settings.travel.buffers,
            mixed=self._settings.travel.mixed,
            sandbox=self._sandbox,
            level=self._proof.level,
            instance=self._endpoint.instance.public_key,
            evidence=self._proof.evidence,
            scrub=self._report(scrub),
            heads=self._heads(),
        )
        return sign_receipt(receipt, self._endpoint.instance)

    def hide(self, error: RecipeError, tell: Callable[[Output], None]) -> JobError:
        """What others hear of a failed recipe: rows were seen, so where is no news.

        Args:
            error: As it happened; unchanged where the rule lets a recipe's text out.
            tell: Gets the note for whoever may read it.
        """
        if self._rule.recipe_text:
            return error
        for note in seal_fault(
            error.fault,
            self._agreement,
            self.job,
            instance=self._endpoint.instance,
            evidence=self._proof.evidence,
        ):
            tell(note)
        hidden = hidden_fault(self._agreement.agreement)
        if error.left:  # one bit of the worker's more: SECURITY.md
            hidden.why += f"; {error.left}"
        return hidden

    def order_uses(self, uses: Sequence[Uses]) -> None:
        """All uses of the run, those of the first accelerator first: as accounts stand."""
        with self._noting:
            self._uses = list(uses)

    def restore(self, measured: HeldOut, resumed: int, uses: Uses) -> None:
        """Go on from a checkpoint's numbers."""
        self.resumed = resumed
        self._uses = [uses]
        self.heldout.restore(measured)

    def account(
        self, training: Trainer, uses: Uses, *, model: bool, passes_before: int = 0
    ) -> SignedAccount:
        """What this accelerator signs of the run for itself, by its party's key.

        Args:
            training: Has the model and the totals.
            uses: Of rows, by this accelerator.
            model: Whether a model is expected.
            passes_before: That a checkpoint had done before this start.

        Raises:
            JobError: code ``statistics-withheld``.
        """
        statistics = self._statistics(training)
        weights = training.digest() if model else None
        made = self._manifest(training, weights, statistics)
        totals = totals_file(statistics, made.prepared)
        result = digest_result(
            made,
            model_file=_digest_of(training) if model else Digest.of(totals),
            settings=self._settings,
            distinct_rows=dict(self._coverage().rows),
        )
        if passes_before and self.heldout.measured().epoch < 0:
            del result["metrics"]  # they were measured before this start
        instance = self._endpoint.instance
        own = self.account_signers()[self.instances.index(instance.public_key)]
        log = (each for each in made.heads if each.body.log == own.key)
        account = RunAccount(
            party=own.party,
            instance=own.instance,
            result=result,
            passes_before=passes_before,
            rows=training.rows_trained,
            tables=uses.tables,
            receipts=Digest.of(encode(uses.receipts)),
            released=tuple(Digest.of(encode(each)) for each in self._released()),
            head=next(log, None),
            at_s=int(self._agreement.equipment.clock()),
        )
        signer = instance if own.key == own.instance else self._endpoint.identity
        if signer is None:
            raise UsageError("an owner's accelerator has no identity to sign with")
        return sign_document(account, signer)

    def account_signers(self) -> list[AccountSigner]:
        """Who signs the accounts of this job."""
        return account_signers(self._plan, self.instances, self._agreement)

    def send(
        self,
        control: Session,
        training: Trainer,
        *,
        model: bool = True,
        accounts: tuple[SignedAccount, ...] = (),
    ) -> bytes:
        """Send the model, if it may leave, the run's receipt, and the signed manifest.

        Args:
            control: To the orchestrator.
            training: Has the model and the totals.
            model: Whether a model is expected.
            accounts: Of all accelerators; made here for one that is alone.

        Returns:
            The receipt.

        Raises:
            PolicyError: code ``output-withheld``; the orchestrator is told first.
            JobError: code ``statistics-withheld``; the same.
        """
        try:
            statistics = self._statistics(training)
            if model:
                self._coverage().require(self._rule)
                training.verify()
            own = accounts or (self.account(training, self.uses(), model=model),)
        except SealiftError as error:
            send_message(control, Failed(error.code, str(error)))
            raise
        weights = training.digest() if model else None
        made = self._manifest(training, weights, statistics)
        if not own[0].body.passes_before:
            made = replace(made, rows=sum(each.body.rows for each in own))
        subject = Digest.of(totals_file(made.statistics, made.prepared))
        if model:
            sealed = seal_model(training.state())
            subject = sealed.content
            for output in self._outputs(training, sealed):
                send_message(control, output)
        receipt = self._run_receipt(made, subject, own)
        for part, last in split_output(receipt):
            send_message(control, Output(RUN_RECEIPT_NAME, part, last))
        signed = sign_manifest(made, self._endpoint.instance)
        send_message(control, JobFinished(*signed))
        return receipt

    def _run_receipt(
        self,
        manifest: RunManifest,
        subject: Digest,
        accounts: tuple[SignedAccount, ...],
    ) -> bytes:
        line = self._agreement.line
        # Clocks differ: it is dated by what others sign, and not by our own clock alone.
        last = [each.body.at_s for each in accounts[1:] or accounts]
        heads = [each.body.at_s - CLOCKS_DIFFER_S for each in manifest.heads]
        receipt = RunReceipt(
            made_at_s=max(last + heads),
            agreement=SignedAgreement(
                line[-1].agreement, line[-1].signatures, line[-1].former, line[:-1]
            ),
            settings=self._settings,
            manifest=manifest,
            accounts=accounts,
            released=self._released(),
            uses=self.uses(),
            distinct_rows=dict(self._coverage().rows),
            checkpoints=self.checkpoints,
            subject=subject,
        )
        return sign_run(receipt, self._endpoint.instance)

    def check_totals(self) -> None:
        """May the sums of ``prepare`` leave, or be built on?

        Raises:
            JobError: code ``statistics-withheld``.
        """
        prepared = self._rules.prepared_rows()
        check_totals(self._rule, self._agreement.agreement.resources, prepared)

    def _statistics(self, training: Trainer) -> dict[str, Statistic]:
        """The totals that leave; a job that made none has none."""
        if not training.statistics:
            return {}
        self.check_totals()
        return let_out_totals(training.statistics, self._rule)

    def _outputs(self, training: Trainer, made: SealedModel) -> Iterator[Output]:
        sealed, key = made.sealed, made.key
        info = OutputInfo(
            kind="model",
            job=self.job,
            agreement=self._agreement.digest,
            owner=self._agreement.agreement.model_to[0],
            weights=training.digest(),
            sealed=Digest(sha256_of(pieces_of(sealed))),
            instance=self._endpoint.instance.public_key,
        )
        files: dict[str, Content] = {**self._keys(key, info), MODEL_NAME: sealed}
        key.wipe()
        for name, content in files.items():
            for part, last in split_output(content):
                yield Output(name, part, last)

    def _keys(self, key: SecretKey, info: OutputInfo) -> dict[str, bytes]:
        """The model's key for each party that gets it; in shares, if some must approve."""
        instance = self._endpoint.instance
        if self._rule.approved_by:
            model = ModelName(
                job=info.job,
                agreement=info.agreement,
                weights=info.weights,
                sealed=info.sealed,
                instance=info.instance,
            )
            return split_output_key(key, model, self._agreement, instance)
        recipients = self._agreement.agreement.model_to
        files = {}
        for name in recipients:
            own = key.twin()
            hpke = self._agreement.party(name).hpke
            wrapped = wrap_output_key(own, replace(info, owner=name), hpke, instance)
            files[key_name(name, recipients)] = encode(wrapped)
        return files

    def _manifest(
        self,
        training: Trainer,
        weights: Digest | None,
        statistics: dict[str, Statistic],
    ) -> RunManifest:
        return RunManifest(
            job=self.job,
            agreement=self._agreement.digest,
            level=self._proof.level,
            plan=self._plan,
            buffers=self._settings.travel.buffers,
            mixed=self._settings.travel.mixed,
            sandbox=self._sandbox,
            device=self._device(),
            statistics=statistics,
            prepared=self._prepared(),
            resumed=self.resumed,
            software=f"sealift {__version__}",
            instance=self.instances[0],  # rank 0 hands it out
            ranks=self.instances,
            collectives=self.collectives,
            traces=training.products.traces.digest() if training.products else None,
            evidence=self._proof.evidence,
            weights=weights,
            steps=training.steps,
            rows=training.rows_trained,
            visits=dict(self._coverage().passes),
            metrics=self._metrics(),
            heads=self._heads(),
        )

    def _metrics(self) -> dict[str, float]:
        """Means over everybody's held-out rows; nobody's own number among them.

        None if each owner keeps its numbers: of two owners, one could subtract.
        """
        if self._rule.audience == "owner":
            return {}
        return self.heldout.means(self._rule.digits)

    def _coverage(self) -> Coverage:
        owners, rules = self._agreement.agreement.data_owners, self._rules
        return Coverage(
            {owner: rules.counted.trained.get(owner, 0) for owner in owners},
            {owner: rules.distinct_rows(owner) for owner in owners},
        )

    def _prepared(self) -> dict[str, int]:
        rows: dict[str, int] = {}
        for name, found in sorted(self._rules.prepared_rows().items()):
            owner = self._agreement.resource(name).owner
            rows[owner] = rows.get(owner, 0) + found
        return rows


def _digest_of(training: Trainer) -> Digest:
    """Of the model's file, as it is sealed."""
    return Digest(sha256_of(chain_tensors(training.state()).pieces()))


@dataclass(frozen=True, slots=True)
class HeldOutPart:
    """Numbers measured on one slice of held-out rows, as the output rule lets them out."""

    first_row: int
    rows: int
    metrics: dict[str, float]


@dataclass(frozen=True, slots=True)
class HeldOut:
    """The latest held-out numbers, for a checkpoint.

    Attributes:
        epoch: After which they were measured; -1 before the first.
        parts: By resource.
    """

    epoch: int = -1
    parts: dict[str, tuple[HeldOutPart, ...]] = field(default_factory=dict)


class HeldOutNumbers:
    """Collects them, from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._epoch = -1
        self._slices: dict[str, dict[int, tuple[int, Mapping[str, float]]]] = {}

    def keep(self, stop: Stop, metrics: Mapping[str, float]) -> None:
        """Remember what was measured at a stop."""
        with self._lock:
            if stop.epoch != self._epoch:
                self._epoch, self._slices = stop.epoch, {}
            slices = self._slices.setdefault(stop.resource, {})
            slices[stop.first_row] = (stop.rows, metrics)

    def measured(self) -> HeldOut:
        """All of them."""
        with self._lock:
            parts = {
                resource: tuple(
                    HeldOutPart(first, rows, dict(metrics))
                    for first, (rows, metrics) in sorted(slices.items())
                )
                for resource, slices in self._slices.items()
            }
            return HeldOut(self._epoch, parts)

    def restore(self, measured: HeldOut) -> None:
        """Go on from a checkpoint's."""
        with self._lock:
            self._epoch = measured.epoch
            self._slices = {
                resource: {each.first_row: (each.rows, each.metrics) for each in parts}
                for resource, parts in measured.parts.items()
            }

    def means(self, digits: int) -> dict[str, float]:
        """Over all rows, rounded."""
        found = self._slices.values()
        parts = [part for slices in found for part in slices.values()]
        return joint_numbers(parts, digits)
