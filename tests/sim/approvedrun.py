"""A run's folder whose model waits for approval, as the accelerator hands it out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from sealift.attest.development import DevelopmentAttester
from sealift.codec import decode, encode
from sealift.crypto.identity import Identity
from sealift.crypto.sign import SigningKey
from sealift.ids import Role
from sealift.release.receipt import prove_instance
from sealift.session.endpoint import Endpoint
from sealift.train.loop.states import TensorBytes, state_digest
from sealift.train.output.approval import (
    Approval,
    ApprovedShare,
    ApproverShare,
    approval_name,
)
from sealift.train.output.handout import Handout
from sealift.train.output.manifest import (
    MANIFEST_NAME,
    RunManifest,
    SignedManifest,
    sign_manifest,
)
from sealift.train.output.opening import (
    approve,
    open_output,
    read_model_manifest,
    read_share,
)
from sealift.train.output.sealing import seal_model
from tests.worlds.consortium import OUTPUT, Consortium, make_consortium

MODEL = {"a": TensorBytes("U8", (4,), memoryview(b"abcd"))}
APPROVERS = ("ada", "bern")


def who_approves(
    *approvers: str, model_to: tuple[str, ...] = (), first: Consortium | None = None
) -> Consortium:
    """A consortium whose agreement asks these for approval; cleo owns the model."""
    first = first or make_consortium()
    output = replace(OUTPUT, model_to=model_to, approved_by=approvers)
    return replace(first, agreement=replace(first.agreement, output=output))


@dataclass
class FinishedRun:
    """One run under an agreement with approvers."""

    consortium: Consortium
    folder: Path
    instance: SigningKey

    def share(self, name: str) -> ApproverShare:
        verified = self.consortium.verified()
        manifest = read_model_manifest(self.folder, verified)
        return read_share(self.folder, manifest, self.party(name), verified)

    def approve(self, *names: str) -> None:
        for name in names:
            verified, share = self.consortium.verified(), self.share(name)
            manifest = read_model_manifest(self.folder, verified)
            approve(self.folder, manifest, share, self.party(name), verified)

    def open(self, name: str = "cleo") -> bytes:
        return open_output(
            self.folder, self.party(name), self.consortium.verified()
        ).content

    def party(self, name: str) -> Identity:
        return self.consortium.identities[name]

    def approval(self, approver: str) -> Approval:
        return decode(Approval, (self.folder / approval_name(approver)).read_bytes())

    def put(self, approver: str, approval: Approval) -> None:
        (self.folder / approval_name(approver)).write_bytes(encode(approval))

    def change(
        self,
        approver: str,
        change: Callable[[ApprovedShare], ApprovedShare],
        recipient: str = "cleo",
    ) -> None:
        """Rewrite what an approver gave to a recipient."""
        shares = self.approval(approver).shares
        shares[recipient] = change(shares[recipient])
        self.put(approver, Approval(shares))


def finished_run(consortium: Consortium, folder: Path, job: str = "job") -> FinishedRun:
    """Let an accelerator hand out its model and its manifest."""
    folder.mkdir(parents=True, exist_ok=True)
    verified, agreement = consortium.verified(), consortium.agreement
    attester = DevelopmentAttester(
        consortium.attester, role=Role.ACCELERATOR, code_bundle=agreement.code.digest
    )
    endpoint = Endpoint(
        role=Role.ACCELERATOR,
        name="accelerator-0",
        agreement=agreement.digest,
        attester=attester,
    )
    unused: Any = None
    handout = Handout(
        verified,
        endpoint,
        job,
        unused,
        proof=unused,
        heads=tuple,
        plan="travel",
        settings=unused,
        sandbox="",
        device=lambda: "cpu",
    )
    training = SimpleNamespace(state=lambda: MODEL, digest=lambda: state_digest(MODEL))
    for output in handout._outputs(training, seal_model(MODEL)):  # type: ignore[arg-type]
        with (folder / output.name).open("ab") as file:
            file.write(output.part)
    proof = prove_instance(endpoint, verified)
    manifest = RunManifest(
        job=job,
        agreement=agreement.digest,
        level=proof.level,
        plan="travel",
        buffers=1,
        mixed=False,
        sandbox="none",
        device="cpu",
        software="sealift",
        instance=endpoint.instance.public_key,
        ranks=(endpoint.instance.public_key,),
        collectives="",
        traces=None,
        evidence=proof.evidence,
        weights=state_digest(MODEL),
        steps=7,
        rows=80,
        visits={"ada": 2, "bern": 1},
        metrics={"loss": 0.125},
        statistics={},
        prepared={},
        resumed=0,
        heads=(),
    )
    return sign_run(FinishedRun(consortium, folder, endpoint.instance), manifest)


def sign_run(run: FinishedRun, manifest: RunManifest) -> FinishedRun:
    """Put a manifest into the run's folder."""
    raw, signature = sign_manifest(manifest, run.instance)
    (run.folder / MANIFEST_NAME).write_bytes(encode(SignedManifest(raw, signature)))
    return run
