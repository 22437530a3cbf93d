"""What a trained model's file says of itself: in the header of ``model.safetensors``.

The text lies under the key ``sealift`` of safetensors' ``__metadata__``, as canonical JSON, so that
every reader of safetensors reads the weights as before. It holds what the agreement lets out
or all parties have signed: nothing of it is secret among them. It proves nothing by itself;
``sealift receipt verify --model`` compares it with the run's receipt.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, Literal

from sealift.attest.level import check_level
from sealift.codec import encode, from_plain, parse
from sealift.crypto.hash import sha256_of
from sealift.data.schema.document import schema_from_plain, schema_to_plain
from sealift.errors import IntegrityError, MalformedError, unreadable
from sealift.ids import Digest, check_name
from sealift.release.agreement import Agreement, CodeBundle
from sealift.release.agreement.training import Parameter, check_parameters
from sealift.release.agreement.whole import MAX_PARTIES
from sealift.train.loop.held import Chain, Content
from sealift.train.loop.states import (
    MAX_HEADER_BYTES,
    chain_tensors,
    parse_tensors,
    read_metadata,
)
from sealift.train.loop.statistics import Statistic
from sealift.train.output.manifest import RunManifest
from sealift.train.output.privateterms import PrivateTerms, private_terms
from sealift.train.output.runreceipt import RunReceipt
from sealift.train.plans import PlanName

KEY: Final = "sealift"
MAX_FACTS_BYTES: Final = 4 << 20
_NUMBER_NAME: Final = re.compile(r"[a-z0-9_-]{1,100}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """One model: well-formed, and so fit for being shown, whoever wrote it.

    Attributes:
        job: Name of the run that made it.
        agreement: Name of the line of agreements.
        number: Of the agreement in the line.
        digest: Of the agreement.
        code: The recipe.
        parameters: Of its ``build``; None where nobody said what they were.
        schema: Of a row, without anything that is an owner's own.
        train: Rows that each owner brought to train on.
        heldout: Rows that each owner brought to measure on.
        level: What the evidence of the run's machines proved.
        plan: How the work was laid out.
        steps: Optimizer steps.
        rows: Rows trained on, with repetition.
        measures: Over all held-out rows.
        statistics: Totals of ``prepare`` that the agreement lets out.
        weights: Digest of the model's state.
        privacy: How steps were private; None, and not written, if they were not.
    """

    format: Literal["sealift-trained-model"] = "sealift-trained-model"
    version: Literal[1] = 1
    job: str
    agreement: str
    number: int
    digest: Digest
    code: CodeBundle
    parameters: dict[str, Parameter] | None
    schema: dict[str, Any]
    train: dict[str, int]
    heldout: dict[str, int]
    level: str
    plan: PlanName
    steps: int
    rows: int
    measures: dict[str, float]
    statistics: dict[str, Statistic] = field(default_factory=dict)
    weights: Digest
    privacy: PrivateTerms | None = None

    def to_fields(self) -> dict[str, object]:
        """As the codec writes it: what is not private says what it always said."""
        plain = {each.name: getattr(self, each.name) for each in fields(self)}
        if self.privacy is None:
            del plain["privacy"]
        return plain

    def __post_init__(self) -> None:
        check_level(self.level)
        check_name(self.job, what="job name")
        check_name(self.agreement, what="agreement name")
        check_parameters(self.parameters or {})
        schema_from_plain(self.schema)
        for owner in {**self.train, **self.heldout}:
            check_name(owner, what="party name")
        if max(len(self.train), len(self.heldout)) > MAX_PARTIES:
            raise _ill("has more owners than an agreement may have", "train")
        rows = (*self.train.values(), *self.heldout.values())
        if min(self.number, self.steps, self.rows, *rows) < 0:
            raise _ill("counts less than nothing", "rows")
        if not all(map(_NUMBER_NAME.fullmatch, (*self.measures, *self.statistics))):
            raise _ill("has a number whose name cannot be in an agreement", "measures")


def _ill(why: str, field: str) -> MalformedError:
    return MalformedError(
        "the header of the model is not valid", why=f"it {why}", field=field
    )


def facts_of(
    agreement: Agreement,
    manifest: RunManifest,
    parameters: Mapping[str, Parameter] | None,
) -> ModelFacts:
    """What the file of a run's model says.

    Args:
        agreement: Verified.
        manifest: Of the run, verified.
        parameters: Of the job, as its receipt has them; None without a receipt.
    """
    return describe_model(
        agreement,
        manifest.agreement,
        parameters,
        job=manifest.job,
        level=manifest.level,
        plan=manifest.plan,
        steps=manifest.steps,
        rows=manifest.rows,
        metrics=manifest.metrics,
        statistics=manifest.statistics,
        weights=manifest.weights,
        privacy=private_terms(agreement, manifest.visits),
    )


def describe_model(
    agreement: Agreement,
    digest: Digest,
    parameters: Mapping[str, Parameter] | None,
    *,
    metrics: Mapping[str, float],
    **run: Any,
) -> ModelFacts:
    """The same of a run that has no manifest; numbers of single owners stay out.

    Args:
        agreement: Verified.
        digest: Of the agreement.
        parameters: Of the job.
        metrics: Of the run.
        run: Other attributes of ``ModelFacts``.
    """
    rows: dict[str, Counter[str]] = {"train": Counter(), "heldout": Counter()}
    tables = [each for each in agreement.resources if each.part in rows]
    for each in tables:
        rows[each.part][each.owner] += each.rows
    if parameters is None and not agreement.training_rule.parameters:
        parameters = {}
    agreed = schema_from_plain(tables[0].schema).agreed
    return ModelFacts(
        agreement=agreement.name,
        number=agreement.number,
        digest=digest,
        code=agreement.code,
        parameters=None if parameters is None else dict(parameters),
        schema=schema_to_plain(agreed),
        train=dict(rows["train"]),
        heldout=dict(rows["heldout"]),
        measures={name: each for name, each in metrics.items() if "." not in name},
        **run,
    )


def write_facts(content: Content, facts: ModelFacts) -> Chain:
    """A model's safetensors with these facts in its header, by reference."""
    return chain_tensors(parse_tensors(content), {KEY: encode(facts).decode()})


def read_facts(path: Path) -> ModelFacts:
    """What a model's file says of itself; whether it is so is not known.

    Raises:
        UnavailableError: it cannot be read.
        MalformedError: ``no-model-facts``: no model of Sealift, or an older one; ``bad-tensors``;
            or what is wrong in them.
    """
    try:
        with path.open("rb") as file:
            head = file.read(8)
            head += file.read(min(int.from_bytes(head, "little"), MAX_HEADER_BYTES))
    except OSError as error:
        raise unreadable(path, error) from error
    try:
        facts = facts_in(head)
    except MalformedError as error:
        if error.code == "bad-tensors":
            error.what = f"{path} is not the file of a model"
        raise
    if facts is None:
        raise MalformedError(
            f"{path} does not say how it was trained",
            why="its header has no facts of Sealift: another program wrote the file, or an older version",
            code="no-model-facts",
        )
    return facts


def facts_in(content: bytes) -> ModelFacts | None:
    """The same of the file's bytes, at least those of its header; None if it has no facts."""
    text = read_metadata(content).get(KEY)
    if text is None:
        return None
    plain = parse(text.encode(), max_bytes=MAX_FACTS_BYTES)
    if isinstance(plain, dict):
        plain.setdefault("privacy", None)
    found: ModelFacts = from_plain(ModelFacts, plain)
    return found


def demand_made(content: bytes, name: str, receipt: RunReceipt) -> None:
    """Demand that a file is the one that a run made, and says of it what is so.

    Raises:
        IntegrityError: ``weights-differ``, ``facts-differ``.
    """
    if Digest.of(content) == receipt.subject:
        return  # as it left the accelerator, without facts
    why = f"its digest is {Digest.of(content)}, the receipt's is {receipt.subject}"
    bare: Digest | None = None
    try:
        bare = Digest(sha256_of(chain_tensors(parse_tensors(content)).pieces()))
        said = read_metadata(content)
    except MalformedError:
        said = {}
    if bare != receipt.subject:
        raise IntegrityError(
            f"{name} is not the file that the run made", why=why, code="weights-differ"
        )
    parameters = receipt.settings.training.parameters
    facts = facts_of(receipt.agreement.agreement, receipt.manifest, parameters)
    if said and said != {KEY: encode(facts).decode()}:
        raise IntegrityError(
            f"{name} has the run's weights, but its header says something else of them than the receipt",
            code="facts-differ",
        )
