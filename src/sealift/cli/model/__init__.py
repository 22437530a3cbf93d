"""`sealift model`: what a model's file says of itself; seal a model that is to be served."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sealift import codec
from sealift.attest.level import Level
from sealift.cli.console import say, show, unlock
from sealift.cli.judging import add_judging_arguments, load_equipped
from sealift.crypto.identity import Identity
from sealift.crypto.keys import SecretKey
from sealift.data.ownersvault import OwnersVault
from sealift.errors import UsageError, ascii_only, quote_foreign
from sealift.release.agreement.explain import KEPT_OUT
from sealift.release.agreement.phrases import say_list
from sealift.release.files import make_folder, read_whole

if TYPE_CHECKING:
    from sealift.data.schema.card import ResourceCard
    from sealift.data.schema.schema import Field
    from sealift.train.output.modelfacts import ModelFacts
    from sealift.train.output.modelform import ModelForm

MAX_MODEL_BYTES = 1 << 40
SHOWN = 12  # categories of a column


def add_parser(subparsers: Any) -> None:
    """Add the noun `model`."""
    verbs = subparsers.add_parser("model").add_verbs()
    parser = verbs.add_parser(
        "card",
        run=_show_card,
        help="show who trained a model, on how many rows, with which measures and limits",
        description="Prints what the header of a model.safetensors says. Anybody can write a header: "
        "`sealift receipt verify receipt.json --model FILE` compares it with the run's receipt.",
    )
    parser.add_path("model", metavar="MODEL", help="a model.safetensors of a run")
    parser.add_json()
    parser = verbs.add_parser(
        "seal",
        run=run,
        help="seal a safetensors file or the model of a run, with a form",
        description="Writes NAME.sealed and its public card NAME.resource.json, and puts the "
        "key into the vault. A run's model is opened as by `sealift output open`, but never "
        "written to disk unencrypted. The form describes inputs, outputs and clients "
        "(docs/howto/serve-a-model.md).",
    )
    parser.add_path("source", help="a .safetensors file, or the folder of a run")
    parser.add_file("--agreement", help="the run's signed agreement")
    parser.add_path("--form", required=True, metavar="TOML", help="the model's form")
    parser.add_argument("--name", required=True, help="its name in the agreement")
    parser.add_path("--vault", required=True, help="created if it does not exist")
    parser.add_path("--key", required=True, help="the owner's identity")
    parser.add_path("-o", "--out", default=Path(), metavar="DIR", help="default: .")
    parser.add_json()
    add_judging_arguments(parser)
    parser.add_passphrase()


def _show_card(args: argparse.Namespace) -> int:
    """What a model's file says; the exit code."""
    from sealift.train.output.modelfacts import read_facts

    facts = read_facts(args.model)
    if args.json:
        print(codec.encode(facts).decode())
        return 0
    for name, line in _card_lines(facts):
        print(f"{name:<12}{ascii_only(line)}")
    say(
        "these are the file's own words; `sealift receipt verify receipt.json --model FILE` compares them with the run's receipt"
    )
    return 0


def _card_lines(facts: ModelFacts) -> Iterator[tuple[str, str]]:
    """A model's card, heading by heading."""
    from sealift.data.schema.document import schema_from_plain

    yield (
        "trained by",
        f"{say_list(sorted(facts.train))}, in the run {quote_foreign(facts.job)}",
    )
    train = [f"{name} {rows:,}" for name, rows in sorted(facts.train.items())]
    yield "rows", f"{sum(facts.train.values()):,} to train on ({', '.join(train)})"
    heldout = [f"{name} {rows:,}" for name, rows in sorted(facts.heldout.items())]
    yield (
        "",
        f"{sum(facts.heldout.values()):,} held out ({', '.join(heldout) or 'none'})",
    )
    yield "steps", f"{facts.steps:,}, on {facts.rows:,} rows, repeats included"
    for number, spec in enumerate(schema_from_plain(facts.schema).fields):
        yield "" if number else "columns", _say_field(spec)
    for number, name in enumerate(facts.measures):
        said = f"{name} {facts.measures[name]:.4g}"
        yield "" if number else "measures", said
    if not facts.measures:
        yield "measures", "none"
    for name in facts.statistics:
        yield "sums", f"{name}, in the file's header"
    yield "agreement", f"{facts.agreement}, number {facts.number}, {facts.digest}"
    yield "recipe", f"{facts.code.digest}, starts in {quote_foreign(facts.code.entry)}"
    if facts.parameters:
        named = (f"{n} {quote_foreign(str(v))}" for n, v in facts.parameters.items())
        yield "parameters", ", ".join(named)
    yield "weights", str(facts.weights)
    yield "level", facts.level
    if facts.privacy is not None:
        for number, line in enumerate(facts.privacy.say()):
            yield "" if number else "privacy", line
    bare = Level(facts.level.split(" ", 1)[0])
    yield "limits", f"the level {KEPT_OUT[bare]}"
    if facts.privacy is None:
        yield "", "the model may remember single rows: there is no differential privacy"
    yield (
        "",
        "measures are of these owners' held-out rows; other rows may differ from them",
    )


def _say_field(spec: Field) -> str:
    shape = "x".join(map(str, spec.shape))
    said = f"{spec.name} {spec.dtype}{f' {shape}' if shape else ''}"
    if spec.classes and not spec.cells.categories:
        said += f", a label of {spec.classes} classes"
    if spec.cells.categories:
        said += (
            f", one of {', '.join(map(quote_foreign, spec.cells.categories[:SHOWN]))}"
        )
        if more := len(spec.cells.categories) - SHOWN:
            said += f" and {more} more" if more > 0 else ""
    return said


def run(args: argparse.Namespace) -> int:
    """Seal; the exit code."""
    from sealift.serve.sealedmodel import seal_model_file
    from sealift.train.output.modelform import load_form

    form = load_form(args.form)
    owner = unlock(args, args.key)
    vault = OwnersVault(args.vault, owner)
    if finished := _finished(args, vault, form):
        _show(args, finished)
        return 0
    vault.demand_free((args.name,), args.out)
    content, said = _content(args, owner)
    form = _with_parameters(form, said)
    key = SecretKey.generate()
    make_folder(args.out)
    card = seal_model_file(
        content,
        form,
        name=args.name,
        owner=owner.name,
        key=key,
        out_dir=args.out,
        keep=lambda card: vault.keep({card.name: key}),
        kept=vault.kept,
    )
    key.wipe()
    _show(args, card)
    return 0


def _finished(
    args: argparse.Namespace, vault: OwnersVault, form: ModelForm
) -> ResourceCard | None:
    """What an earlier run had sealed when it was stopped, if it is what is asked for."""
    from sealift.data.schema.card import read_card
    from sealift.data.staging import finish_interrupted, sealed_paths

    if not finish_interrupted(args.out, args.name, vault.kept):
        return None
    say(
        f"an earlier run, which was stopped, had sealed {args.name}; it is complete now"
    )
    path = sealed_paths(args.out, args.name).card
    card = read_card(path) if path.exists() else None
    if card is None or not vault.kept(card):
        return None
    found = dict(card.resource.schema)
    if not form.parameters:  # then they are the model's, which is not read again
        found.pop("parameters", None)
    if (card.resource.part, found) != ("model", form.to_plain()):
        return None
    say(f"{args.source} was not read again")
    return card


def _content(
    args: argparse.Namespace, owner: Identity
) -> tuple[bytes, ModelFacts | None]:
    """The model's safetensors, and what is known of it: of a file, or of a run, as checked."""
    from sealift.train.output.modelfacts import facts_in, facts_of

    if not args.source.is_dir():
        content = read_whole(args.source, MAX_MODEL_BYTES)
        return content, facts_in(content)
    if args.agreement is None:
        raise UsageError(
            "the agreement of the run is missing", fix="Add --agreement FILE"
        )
    from sealift.cli.model.output import read_receipt
    from sealift.train.output.opening import open_output

    verified = load_equipped(args)
    opened = open_output(args.source, owner, verified)
    receipt = read_receipt(args.source, opened, verified)
    parameters = receipt.settings.training.parameters if receipt else None
    return opened.content, facts_of(verified.agreement, opened.manifest, parameters)


def _with_parameters(form: ModelForm, facts: ModelFacts | None) -> ModelForm:
    """The form with what the model was built with: as trained, or as its owner says.

    Raises:
        UsageError: nobody says it, or the owner says something else.
    """
    if facts is None or (facts.parameters is None and form.parameters):
        return form
    if facts.parameters is None:
        raise UsageError(
            "the model does not say which parameters its recipe was built with",
            fix="Write them under [parameters] in the form, or seal the run where its receipt.json lies in its folder",
        )
    if form.parameters and form.parameters != facts.parameters:
        raise UsageError(
            "the form's [parameters] are not those that the model was trained with",
            fix="Leave them out of the form: they are taken from the model",
        )
    return replace(form, parameters=facts.parameters)


def _show(args: argparse.Namespace, card: ResourceCard) -> None:
    from sealift.data.staging import sealed_paths

    paths = sealed_paths(args.out, args.name)
    facts: dict[str, Any] = {"sealed": str(paths.sealed), "card": str(paths.card)}
    resource = codec.to_plain(card.resource)
    kept = ("name", "owner", "total_bytes", "content", "key")
    facts |= {name: resource[name] for name in kept}
    show(facts, as_json=args.json, width=12, gap="")
    if not args.json:
        say(f"the key is in {args.vault}; the agreement needs {paths.card.name}")
