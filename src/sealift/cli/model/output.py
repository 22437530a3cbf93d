"""`sealift output`: approve of a run's model, open it as its owner, or see what failed.

`sealift output approve` says for a party that a run's model may be opened.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sealift.attest.level import protects_nobody
from sealift.cli.console import confirm, say, show, unlock
from sealift.cli.judging import (
    add_judging_arguments,
    add_time_argument,
    load_equipped,
)
from sealift.errors import SealiftError, UsageError, ascii_only, quote_foreign
from sealift.ids import Digest
from sealift.release.agreement import Agreement
from sealift.release.agreement.signed import VerifiedAgreement
from sealift.release.files import read_whole, require_absent, write_whole
from sealift.train.output.sealing import OpenedFault, open_fault
from sealift.travel.visit.messages import MAX_RUN_RECEIPT_BYTES, RUN_RECEIPT_NAME

if TYPE_CHECKING:
    from sealift.train.output.manifest import RunManifest
    from sealift.train.output.opening import OpenedModel
    from sealift.train.output.runreceipt import RunReceipt


def _add_approve_parser(verbs: Any) -> None:
    """Add the verb `approve`."""
    parser = verbs.add_parser(
        "approve",
        run=run,
        help="show a run, and approve the release of its model",
        description="For parties in the agreement's output.approved_by. Verifies the manifest "
        "and its evidence against the agreement, shows the run, asks, and writes your share "
        "of the model's key for its recipients to RUN/model.approval.NAME.json. Needs the "
        "run's manifest.json and model.share.NAME.json, not the model. To refuse, do "
        "nothing: nobody can open the model without your share.",
    )
    parser.add_path("folder", metavar="RUN", help="the run's folder")
    parser.add_file("--key", required=True, help="your identity key")
    parser.add_file("--agreement", required=True, help="the signed agreement")
    parser.add_flag("--yes", "do not ask")
    add_judging_arguments(parser)
    parser.add_passphrase()


def _approve_output(args: argparse.Namespace) -> str:
    """Show, ask, approve; the level of the run."""
    from sealift.train.output.opening import approve, read_model_manifest, read_share

    verified = load_equipped(args)
    approver = unlock(args, args.key)
    manifest = read_model_manifest(args.folder, verified)
    share = read_share(args.folder, manifest, approver, verified)
    for line in _describe_run(manifest, verified.agreement):
        print(ascii_only(line))
    confirm(
        "approve the release of this model",
        yes=args.yes,
        fix="Read the lines above, then add --yes",
    )
    place = approve(args.folder, manifest, share, approver, verified)
    print(f"approval    {place}")
    return manifest.level


def _describe_run(manifest: RunManifest, agreement: Agreement) -> Iterator[str]:
    """What an approver approves, line by line."""
    facts = {
        "job": quote_foreign(manifest.job),
        "agreement": f"{agreement.name}, number {agreement.number}, {agreement.digest}",
        "code": f"{agreement.code.digest}, entry {agreement.code.entry}",
        "level": manifest.level,
        "sandbox": quote_foreign(manifest.sandbox),
        "software": quote_foreign(manifest.software),
        "weights": manifest.weights,
        "trained": f"{manifest.steps:,} steps on {manifest.rows:,} rows, repeats included",
        "visits": _counts(manifest.visits),
        "rows agreed": _counts(_agreed_rows(agreement)),
        "metrics": _counts(manifest.metrics),
        "resumed": manifest.resumed,
        "model to": ", ".join(agreement.model_to),
        "approvers": ", ".join(agreement.output_rule.approved_by),
    }
    for name, value in facts.items():
        yield f"{name:<11} {value}"


def _agreed_rows(agreement: Agreement) -> dict[str, int]:
    """Training rows that each owner brought into the agreement."""
    rows = dict.fromkeys(agreement.data_owners, 0)
    for each in agreement.resources:
        if each.part == "train":
            rows[each.owner] += each.rows
    return rows


def _counts(numbers: Mapping[str, float]) -> str:
    return (
        ", ".join(f"{quote_foreign(name)} {value}" for name, value in numbers.items())
        or "none"
    )


def add_parser(subparsers: Any) -> None:
    """Add the noun `output`."""
    verbs = subparsers.add_parser("output").add_verbs()
    parser = verbs.add_parser(
        "open",
        run=run,
        help="verify where the model comes from, and write it as safetensors",
        description="Verifies the manifest and its evidence against the agreement, decrypts the "
        "model with its owner's identity key, and compares the weights with the digest in "
        "the manifest. Needs the approval of all parties in the agreement's "
        "output.approved_by. A run of plan local has an unencrypted model.safetensors. If "
        "the recipe failed, the code's owner opens RUN.fault.NAME.json to see where.",
    )
    parser.add_path(
        "folder", metavar="RUN", help="the run's folder, or RUN.fault.NAME.json"
    )
    parser.add_file("--key", required=True, help="the owner's identity key")
    parser.add_file("--agreement", required=True, help="the signed agreement")
    parser.add_file("-o", "--output", help="where to write the model")
    parser.add_json()
    add_judging_arguments(parser)
    add_time_argument(parser)
    parser.add_passphrase()
    _add_approve_parser(verbs)


def run(args: argparse.Namespace) -> int:
    """Open or approve; the exit code."""
    level = _approve_output(args) if args.verb == "approve" else _open(args)
    if protects_nobody(level):
        say(
            "level development: whoever ran the machines could read rows, keys and model"
        )
    return 0


def _open(args: argparse.Namespace) -> str:
    """Open; the level of the run."""
    if args.output is None and not args.folder.is_file():
        raise UsageError("a model is written to a file", fix="Add -o FILE")
    if args.output is not None:
        require_absent(args.output)
    verified = load_equipped(args)
    owner = unlock(args, args.key)
    if args.folder.is_file():
        return _show_fault(open_fault(args.folder, owner, verified), as_json=args.json)
    from sealift.train.output.modelfacts import facts_of, write_facts
    from sealift.train.output.opening import (
        open_output,  # imports torch, so only after all other checks
    )

    opened = open_output(args.folder, owner, verified)
    manifest, receipt, refused = opened.manifest, None, None
    try:
        receipt = read_receipt(args.folder, opened, verified)
    except SealiftError as error:
        error.fix = f"{args.output} was written; do not use {args.folder / RUN_RECEIPT_NAME} as its receipt"
        refused = error
    parameters = receipt.settings.training.parameters if receipt else None
    described = facts_of(verified.agreement, manifest, parameters)
    write_whole(args.output, b"".join(write_facts(opened.content, described).pieces()))
    facts = {
        "file": str(args.output),
        "weights": opened.weights.to_text(),
        "level": manifest.level,
        "tensors": opened.tensors,
        "parameters": opened.parameters,
        "metrics": manifest.metrics,
    }
    show(facts, as_json=args.json, width=10)
    if refused is not None:
        raise refused
    return manifest.level


def read_receipt(
    folder: Path, opened: OpenedModel, verified: VerifiedAgreement
) -> RunReceipt | None:
    """The receipt of the run, where it lies beside the model and names this very model.

    Raises:
        SealiftError: as ``demand_of``.
    """
    from sealift.train.output.runreceipt import demand_of, open_run

    place = folder / RUN_RECEIPT_NAME
    if not place.exists():
        return None
    raw, own = read_whole(place, MAX_RUN_RECEIPT_BYTES), Digest.of(opened.content)
    return open_run(demand_of(raw, verified, manifest=opened.manifest, subject=own))


def _show_fault(found: OpenedFault, *, as_json: bool) -> str:
    error = found.error
    facts = {"job": found.job, "error": error.code, "line": str(error)}
    show(facts, as_json=as_json, width=10)
    return found.level
