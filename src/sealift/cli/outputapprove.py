"""`sealift output approve`: a party says that a run's model may be opened."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sealift.cli.ask import confirm
from sealift.cli.judging import add_judging_arguments, equip_from
from sealift.cli.passphrase import add_passphrase_argument, read_passphrase
from sealift.crypto.identity import load_identity
from sealift.release.agreement import Agreement
from sealift.release.agreement.signed import load_verified
from sealift.release.visible import ascii_only

if TYPE_CHECKING:
    from sealift.train.manifest import RunManifest


def add_approve_parser(verbs: Any) -> None:
    """Add the verb `approve`."""
    parser = verbs.add_parser(
        "approve",
        help="show what a run was, and let its model be opened",
        description="For a party that the agreement's output.approved_by names. Checks "
        "the manifest's evidence against the agreement, shows what the run was, and "
        "gives this party's share of the model's key to everybody who gets the model, "
        "in RUN/model.approval.NAME.json. Needs manifest.json and model.share.NAME.json "
        "of the run, not the model. Whoever does not approve does nothing: without its "
        "share nobody opens the model.",
    )
    parser.add_argument("folder", type=Path, metavar="RUN", help="the run's folder")
    parser.add_argument(
        "--key", type=Path, required=True, metavar="FILE", help="your identity"
    )
    parser.add_argument(
        "--agreement", type=Path, required=True, metavar="FILE", help="the signed one"
    )
    parser.add_argument("--yes", action="store_true", help="do not ask")
    add_judging_arguments(parser)
    add_passphrase_argument(parser)


def approve_output(args: argparse.Namespace) -> str:
    """Show, ask, approve; the level of the run."""
    from sealift.train.approving import approve, read_request
    from sealift.train.handover import read_model_manifest

    verified = equip_from(args, load_verified(args.agreement))
    prompt = f"passphrase of {args.key.name}"
    approver = load_identity(
        args.key, read_passphrase(args.passphrase_file, prompt=prompt)
    )
    manifest = read_model_manifest(args.folder, verified)
    request = read_request(args.folder, manifest, approver, verified)
    for line in describe_run(manifest, verified.agreement):
        print(ascii_only(line))
    confirm(
        "let the model be opened",
        yes=args.yes,
        fix="Read what is shown above, then give --yes",
    )
    print(f"approval    {approve(args.folder, request, approver, verified)}")
    return manifest.level


def describe_run(manifest: RunManifest, agreement: Agreement) -> Iterator[str]:
    """What an approver approves, line by line."""
    facts = {
        "job": manifest.job,
        "agreement": f"{agreement.name}, number {agreement.number}, {agreement.digest}",
        "code": f"{agreement.code.digest}, entry {agreement.code.entry}",
        "level": manifest.level,
        "sandbox": manifest.sandbox,
        "software": manifest.software,
        "weights": manifest.weights,
        "trained": f"{manifest.steps} steps on {manifest.rows} rows, repeats included",
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
    return ", ".join(f"{name} {value}" for name, value in numbers.items()) or "none"
