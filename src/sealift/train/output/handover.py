"""Open a run's model as its owner: manifest, key, content and weights, all checked.

What is trusted is the agreement alone: the manifest's evidence binds the instance key,
the instance key signed the output's key, and the state that comes out has the digest
that the manifest names. Nothing is unpickled.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sealift.codec import decode
from sealift.crypto.identity import Identity
from sealift.errors import IntegrityError, PolicyError, UnavailableError
from sealift.ids import Digest
from sealift.release.agreement.signed import VerifiedAgreement
from sealift.release.files import read_whole
from sealift.train.loop.states import parse_tensors, state_digest
from sealift.train.output.approving import open_approved
from sealift.train.output.manifest import (
    MANIFEST_NAME,
    MAX_MANIFEST_BYTES,
    RunManifest,
    SignedManifest,
    verify_manifest,
)
from sealift.train.output.sealing import key_name, open_model


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """A model whose origin and weights were checked.

    Attributes:
        manifest: What the run was.
        content: The model's state as safetensors.
        tensors: How many tensors it has.
        parameters: How many numbers they hold.
    """

    manifest: RunManifest
    content: bytes
    tensors: int
    parameters: int

    @property
    def weights(self) -> Digest:
        """Digest of the model's state, as the manifest names it."""
        assert self.manifest.weights is not None, "it was compared with the model's"
        return self.manifest.weights


def read_manifest(folder: Path, verified: VerifiedAgreement) -> RunManifest:
    """The verified manifest of a run's folder.

    Raises:
        UnavailableError: if it cannot be read.
        RefusedError: if it is not by an accelerator that the agreement accepts.
    """
    raw = read_whole(folder / MANIFEST_NAME, MAX_MANIFEST_BYTES)
    return verify_manifest(decode(SignedManifest, raw), verified)


def read_model_manifest(folder: Path, verified: VerifiedAgreement) -> RunManifest:
    """The verified manifest of a run that made a model.

    Raises:
        UnavailableError: ``no-model``, or if it cannot be read.
        RefusedError: if it is not by an accelerator that the agreement accepts.
    """
    manifest = read_manifest(folder, verified)
    if manifest.weights is None:
        raise UnavailableError(
            f"the run in {folder} made no model",
            why="its job was for statistics alone",
            code="no-model",
        )
    return manifest


def open_output(
    folder: Path, owner: Identity, verified: VerifiedAgreement
) -> OpenedModel:
    """Open ``model.sealed`` of a run with the identity of a party that gets it.

    Raises:
        PolicyError: ``other-key``, if this is nobody's who gets the model;
            ``approval-missing``.
        RefusedError: if anything of the output does not fit the agreement.
        MalformedError: if the model is not safetensors.
        UnavailableError: ``no-model``, or if a file cannot be read.
    """
    agreement = verified.agreement
    recipients = agreement.model_to
    keys = {name: verified.party(name).sign for name in recipients}
    if keys.get(owner.name) != owner.public_key:
        raise PolicyError(
            f"this identity is not the agreement's {' or '.join(recipients)}",
            why=f"it is {owner.name}",
            fix="Only who gets the model can open it",
            code="other-key",
        )
    manifest = read_model_manifest(folder, verified)
    if agreement.output_rule.approved_by:
        content = open_approved(folder, owner, manifest, verified)
    else:
        key_file = key_name(owner.name, recipients)
        content = open_model(folder, owner.hpke, manifest.instance, key_file)
    state = parse_tensors(content)
    if state_digest(state) != manifest.weights:
        raise IntegrityError(
            "the model is not the one that the manifest names", code="weights-differ"
        )
    parameters = sum(tensor.elements for tensor in state.values())
    return OpenedModel(manifest, content, len(state), parameters)
