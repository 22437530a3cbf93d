"""``sealift host``: call a meeting, wait until all have signed, run the job, open the model."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from sealift.cli.console import say
from sealift.cli.meeting.place import add_ask_argument, open_folder
from sealift.cli.meeting.unattended import attend
from sealift.cli.view import add_view_argument, view_beside
from sealift.errors import (
    PolicyError,
    RefusedError,
    SealiftError,
    UnavailableError,
    UsageError,
    require_value,
    visible,
)
from sealift.events import Event, Sink, discard, emit, wall_clock
from sealift.ids import MAX_RANKS, check_name
from sealift.meet.connection import Attendance, MeetingListener, places
from sealift.meet.declaration import (
    declaration_of,
    demand_dialable,
    invitations_for,
    job_of,
    measures_of,
    read_recipe,
    try_recipe,
)
from sealift.meet.folder import BUNDLES, PartyFolder
from sealift.meet.host import Host
from sealift.meet.invitation import HOST
from sealift.meet.messages import Run
from sealift.meet.proposal import (
    graph_digest,
    proposed_graph,
    read_note,
)
from sealift.meet.question import DepartureLines
from sealift.meet.runs import MODEL_NAME, MeetingRun, chosen_run, read_run
from sealift.meet.state import MeetingState
from sealift.release.agreement import Agreement
from sealift.release.agreement.code import (
    find_assets,
    measure_assets,
    measure_bundle,
    read_bundle,
)
from sealift.release.agreement.signed import (
    SignedAgreement,
    load_signed,
    save_signed,
    verify,
)
from sealift.release.agreement.tallies import tally_of
from sealift.release.files import make_folder, write_whole
from sealift.session.relay.client import RelayClient
from sealift.session.relay.envelope import STRANGERS, STRANGERS_EACH
from sealift.session.relay.server import FULL, Relay
from sealift.train.job.caller import Caller, long_command
from sealift.train.job.journal import Journal, journal_of
from sealift.train.job.settings import parse_address
from sealift.train.job.talk import Talk
from sealift.train.loop.measures import ACCURACY
from sealift.travel.visit.messages import RUN_RECEIPT_NAME
from sealift.view.report import REPORT_NAME

LISTEN: Final = "127.0.0.1:7420"
TRIED_STEPS: Final = 2
_UNWRITTEN: Final = ("guest.gone", "guest.proposed", "guest.refused")
HEAR_S: Final = 30.0  # for guests to hear of a no: one whose person is asked stays away
FREE_S: Final = 10.0  # of the port, after this host was killed


def add_parser(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "host",
        run=run,
        description="Prints an invitation for each party, waits until all of them have "
        "joined and signed, runs the job and decrypts the model. RECIPE is a folder with "
        "recipe.py, and with schema.toml, which says what each party's table must look like. "
        "A job.toml in it may have the sections [training], [parameters], [travel] and [run]; and "
        "[agreed], with the ranges of settings that later runs may use without new signatures. "
        "All files are written to the current folder; run the same command there again to "
        "continue, or, with another job.toml, to start the next run.",
    )
    parser.add_path("recipe", metavar="RECIPE", help="the recipe's folder")
    parser.add_argument(
        "--invite", nargs="+", default=[], metavar="NAME", help="names of the parties"
    )
    parser.add_argument(
        "--listen", default=LISTEN, metavar="HOST:PORT", help=f"default: {LISTEN}"
    )
    parser.add_argument(
        "--address",
        default="",
        metavar="HOST:PORT",
        help="where parties connect, if not at --listen",
    )
    add_view_argument(parser)
    add_ask_argument(parser)
    parser.add_argument(
        "--days",
        type=int,
        default=90,
        help="days until the agreement ends: %(default)s",
    )


def run(args: argparse.Namespace) -> int:
    """Meet, train, open; the exit code."""
    desk = attend(args, owner=False)
    place = open_folder(Path.cwd(), HOST, ask=args.passphrase, desk=desk)
    metrics, graph = _try_first(args, place)
    chosen = None
    if place["agreement.json"].exists():
        chosen = chosen_run(args.recipe, place)
        if place[chosen.model].exists():
            print(chosen.model)
            return 0
    elif place[MODEL_NAME].exists():  # nobody trains for a file that cannot be written
        raise UsageError(
            f"{MODEL_NAME} is already in this folder, and no run of this meeting made it",
            code="output-exists",
        )
    book = _open_book(args, place, metrics, graph)
    with closing(book):
        host = _declare(args, book, place, metrics, graph)
        chosen = chosen or MeetingRun(1, host.declaration.job)
        with view_beside(place.folder, chosen.job.name, wanted=args.view):
            if chosen.number == 1:
                _write(place, host, _meet(args, book, host, desk.sink))
            emit(desk.sink, "meeting.signed", name=HOST)
            code = _train(
                args, place, replace(host, run=Run(chosen.number, chosen.text))
            )
    return code or _open_model(place, chosen)


def _open_model(place: PartyFolder, run: MeetingRun) -> int:
    """The model, the report and the receipt, out of the folder of the run; the exit code."""
    words = ["output", "open", run.folder, "--key", place.key.name]
    words += ["--passphrase-file", place.passphrase, "-o", run.model]
    words += ["--agreement", "agreement.json"]
    if code := long_command(words, prints=False):  # the run printed its numbers
        return code  # no report stands beside a model that is not there
    receipt = place[run.folder] / RUN_RECEIPT_NAME
    if run.number == 1:
        write_whole(place[REPORT_NAME], (place["run"] / REPORT_NAME).read_bytes())
    if not receipt.exists():
        say(f"{run.model} was written, but the run's receipt was refused (see above)")
        return PolicyError.exit_code
    where = "" if run.number == 1 else f"{run.folder}/"
    if run.number == 1:
        write_whole(place[receipt.name], receipt.read_bytes())
    say(
        f"also written: {where}{REPORT_NAME}, and {where}{RUN_RECEIPT_NAME}, which every party has"
    )
    print(run.model)
    return 0


def _try_first(
    args: argparse.Namespace, place: PartyFolder
) -> tuple[tuple[str, ...], Path | None]:
    """What is wrong with folder and recipe is said before anybody is invited, or signs.

    Returns:
        Names of what it measures; none while nobody is invited. The folder with the recipe
        as a graph; None where its program is what the parties get.

    Raises:
        PolicyError: ``recipe-signed``: it is not the one that all have signed.
        UnavailableError: ``cannot-write``, before the recipe is tried.
        SealiftError: as ``read_recipe``, ``try_recipe`` and ``proposed_graph``.
    """
    files, schema = read_recipe(args.recipe)
    if not os.access(place.folder, os.W_OK | os.X_OK):
        why = "the host's files go there, and you may not write to it"
        raise UnavailableError(
            f"cannot write to {place.folder}", why=why, code="cannot-write"
        )
    if place["agreement.json"].exists():
        signed = load_signed(place["agreement.json"]).agreement
        graph = _require_signed(args, place, files, signed)
        return signed.output_rule.metrics, graph
    names = _demand_names(args)
    if place["meeting.db"].exists():
        with closing(MeetingState.open(place["meeting.db"])) as book:
            names = [each.name for each in book.seats()]
    if not names:
        _require_free(place, args.recipe)
        return (), None
    job = job_of(args.recipe, names, args.address or args.listen)
    if job.recipe == "code":
        _require_free(place, args.recipe)
    say("testing the recipe on random rows, for two steps")
    tried = try_recipe(
        args.recipe, files, schema, job.training, steps=TRIED_STEPS, tell=say
    )
    graph = None
    folder = place[BUNDLES["graph"]]
    if proposed_graph(args.recipe, folder, job, tried, steps=TRIED_STEPS, tell=say):
        graph, place.kind = folder, "graph"
    _require_free(place, graph or args.recipe)
    metrics = measures_of(tried)
    say(f"each owner's agreement will list what it measures: {', '.join(metrics)}")
    if ACCURACY in metrics and not any(map(tally_of, metrics)):
        say(
            "evaluate() returns the accuracy without counts of classes, so nobody will see how right "
            "it is to name the most frequent class always; measures.count_classes gives them "
            "(spec/recipe.md, section Measures)"
        )
    return metrics, graph


def _require_signed(
    args: argparse.Namespace,
    place: PartyFolder,
    files: dict[str, bytes],
    signed: Agreement,
) -> Path | None:
    """The recipe is what all have signed, or what that was made from; the graph's folder.

    Raises:
        PolicyError: ``recipe-signed``.
    """
    source = measure_bundle(files, "recipe.py", measure_assets(args.recipe)).digest
    graph, found = None, source
    place.kind = signed.code.kind
    if place.kind == "graph":
        graph, note = place.recipe, read_note(place.recipe)
        same = note is not None and note.recipe == source
        found = graph_digest(graph) if same else source
    if found != signed.code.digest:
        raise PolicyError(
            "the recipe is not the one that all parties signed",
            why=f"{args.recipe} was changed after that",
            code="recipe-signed",
        )
    _require_free(place, graph or args.recipe)
    return graph


def _require_free(place: PartyFolder, offered: Path) -> None:
    """In the folder of what the parties get lies nothing else.

    Raises:
        UsageError: ``file-in-the-way``.
    """
    place.require_own({}, read_bundle(offered), {})
    place.require_own_assets(measure_assets(offered), {})


def _open_book(
    args: argparse.Namespace,
    place: PartyFolder,
    metrics: tuple[str, ...],
    graph: Path | None,
) -> MeetingState:
    """The meeting's; a new one for those who are invited, to what can be agreed on.

    Raises:
        SealiftError: as ``declaration_of``; then nobody was invited.
        UsageError: nobody is invited, or others than before, or to another place.
        UnavailableError: ``port-in-use``.
    """
    path = place["meeting.db"]
    names = _demand_names(args)
    if path.exists():
        book = MeetingState.open(path)
        try:
            _demand_same(args, book, names)
        except UsageError:
            book.close()
            raise
    elif not names:
        raise UsageError(
            "nobody is invited",
            fix="Name the parties: sealift host RECIPE --invite north east",
            code="nobody-invited",
        )
    else:
        Relay.listen(*parse_address(args.listen)).close()  # else nobody is invited
        identity, address = place.identity(), args.address or args.listen
        invited = invitations_for(identity, names, address=address, days=args.days)
        declaration_of(args.recipe, invited, identity, metrics, graph=graph)
        book = MeetingState.create(path, invited)
    for seat in book.seats():
        line = seat.invitation.to_text()
        if args.no_terminal is not None:  # a service's output is read by many
            make_folder(place["invitations"])
            write_whole(place["invitations"] / seat.name, f"{line}\n".encode())
            continue
        print(f"{seat.name}  {line}", flush=True)
        Caller.tell("invitation", party=seat.name, line=line)
    what = "its line" if args.no_terminal is None else "its file in invitations/"
    say(f"send each party {what}; keep it secret until that party has used it")
    if not args.address and args.listen == LISTEN:
        say(
            f"these invitations work on this machine only, because they name {LISTEN}; for other "
            "machines invite in an empty folder, with --listen 0.0.0.0:7420 and --address "
            "NAME:7420, where NAME leads the parties to this machine"
        )
    return book


def _demand_same(
    args: argparse.Namespace, book: MeetingState, names: list[str]
) -> None:
    """What is in the invitations stays.

    Raises:
        UsageError: ``other-meeting``.
    """
    seats = book.seats()
    invited, address = [each.name for each in seats], seats[0].invitation.addresses[0]
    if names and names != invited:
        raise UsageError(
            f"the meeting in this folder invites {', '.join(invited)}",
            fix="To invite other parties, start another meeting in an empty folder",
            code="other-meeting",
        )
    if (args.address or args.listen) != address:
        raise UsageError(
            f"the invitations name the address {address}",
            fix="Give the same --listen and --address as before, or start another meeting "
            "in an empty folder",
            code="other-meeting",
        )


def _demand_names(args: argparse.Namespace) -> list[str]:
    """Who is invited, before anything is made.

    Raises:
        UsageError: a name stands twice, or is the host's own; no time, no address.
    """
    names = [check_name(each, what="party name") for each in args.invite]
    parse_address(args.listen)
    demand_dialable(args.address or args.listen)
    twice = [each for each in names if names.count(each) > 1]
    if twice or HOST in names:
        raise UsageError(
            f"{(twice or [HOST])[0]} cannot be invited",
            why="two parties have that name" if twice else "it is the host's own name",
            fix="Give each party a name of its own",
            code="bad-name",
        )
    if len(names) == 1 or len(names) > MAX_RANKS:
        raise UsageError(
            f"a meeting has 2 to {MAX_RANKS} parties, each with its own accelerator",
            fix="Up to 62 owners can train with plan travel, under an agreement made "
            "by hand: docs/howto/by-hand.md",
        )
    if args.days < 1:
        raise UsageError("--days must be at least 1")
    return names


def _declare(
    args: argparse.Namespace,
    book: MeetingState,
    place: PartyFolder,
    metrics: tuple[str, ...],
    graph: Path | None,
) -> Host:
    """What the recipe's folder says, as a declaration; the book is told.

    Once all have signed it is what they signed, whatever job.toml says now.
    """
    invited, identity = [each.invitation for each in book.seats()], place.identity()
    first = read_run(place, 1) if place["agreement.json"].exists() else None
    job = first.text if first is not None else ""
    declaration, files = declaration_of(
        args.recipe, invited, identity, metrics, job=job, graph=graph
    )
    book.declare(declaration.digest)
    assets = find_assets(graph or args.recipe)
    return Host(book, declaration, files, identity, wall_clock, assets=assets)


def _meet(
    args: argparse.Namespace, book: MeetingState, host: Host, sink: Sink
) -> SignedAgreement:
    """Receive guests until all have signed; ``sink`` gets that they can come.

    Raises:
        RefusedError: ``meeting-declined``, once the others have heard who cannot take part.
    """
    talk = Talk(sys.stderr)
    said: dict[str, str] = {}

    def tell(event: Event) -> None:
        if line := _line(event):
            if said.get(f"{event.kind} {event.fields.get('column')}") != line:
                talk.say(line)
            said[f"{event.kind} {event.fields.get('column')}"] = line

    name = host.declaration.name
    journal = Journal(journal_of(Path.cwd(), name), HOST, tell, wall_clock)
    journal.begin(job=name, plan="ddp")
    args.ended = journal.end

    def quiet(event: Event) -> None:
        """Strangers, and what guests wrote, stay out of the journal."""
        (tell if event.kind in _UNWRITTEN else journal)(event)

    for seat in book.seats():  # whoever comes now is asked anew
        if seat.declined is not None:
            book.decline(seat.name, None)
    listen = parse_address(args.listen)
    registry = places(book, host.declaration.meeting)
    with ExitStack() as stack:
        _await_free(listen)
        relay = stack.enter_context(
            Relay.listen(*listen, registry=registry, sink=tell, clock=wall_clock)
        )
        client = stack.enter_context(relay.local_client(HOST))
        here = Attendance(lambda: relay.names, time.monotonic)
        heard = replace(host, away=here.away)
        MeetingListener(
            client, heard, sink=quiet, vouch=relay.vouch, attendance=here
        ).start()
        departures = DepartureLines(HOST, talk.say)
        emit(sink, "meeting.listening", address=args.listen)
        while True:
            _require_all_willing(book, relay, talk)
            signed = _agreed(host, tell)
            missing = signed.missing if signed else _missing(book)
            if signed is not None and not missing:
                talk.wait_for("")
                return signed
            departures.tell(heard.gone())
            talk.wait_for(_awaited(book, missing) or "tables that fit together")
            time.sleep(0.1)


def _require_all_willing(book: MeetingState, relay: Relay, talk: Talk) -> None:
    """End the meeting if a party said no, or has no table for it.

    The others ask several times a second, so they get the answer first.

    Raises:
        RefusedError: ``meeting-declined``, with that party.
    """
    declined = next((each for each in book.seats() if each.declined is not None), None)
    if declined is None:
        return
    until_s = time.monotonic() + HEAR_S
    while relay.names - {HOST} and time.monotonic() < until_s:
        talk.wait_for("the other parties to read that the meeting has ended")
        time.sleep(0.1)
    now = book.seat(declined.name)
    if now is not None and now.declined is not None:  # else it is back, and is asked
        raise RefusedError(f"{now.name}: {now.declined}", code="meeting-declined")


def _agreed(host: Host, tell: Sink) -> SignedAgreement | None:
    """The agreement as far as it is signed; None before all said yes, or while none follows."""
    try:
        return host.agreement()
    except SealiftError as error:
        tell(Event("guest.unfit", {"line": str(error)}))
        return None


def _await_free(address: tuple[str, int]) -> None:
    """Wait for the port: a host that was killed may have an orchestrator that is still ending."""
    until_s = time.monotonic() + FREE_S
    while time.monotonic() < until_s:
        try:
            Relay.listen(*address).close()
        except UnavailableError as error:
            if error.code != "port-in-use":
                return  # who listens says it
            time.sleep(0.1)
        else:
            return


def _missing(book: MeetingState) -> tuple[str, ...]:
    return tuple(each.name for each in book.seats() if each.consent is None)


def _awaited(book: MeetingState, missing: Sequence[str]) -> str:
    """Parties that have not come yet, and answers of those that have."""
    here = {each.name for each in book.seats() if each.card is not None}
    return ", ".join(f"{name}'s answer" if name in here else name for name in missing)


def _line(event: Event) -> str:
    name = event.fields.get("name", "")
    match event.kind:
        case "relay.refused" if event.fields["reason"] == FULL:
            return (
                f"more than {STRANGERS_EACH} new connections of one address or {STRANGERS} in "
                f"all at one time; the next ones wait [{FULL}]"
            )
        case "guest.arrived":
            return f"{name} has connected"
        case "guest.refused":
            return f"somebody connected as {name} and was refused: {event.fields['reason']}"
        case "guest.brought":
            return f"{name} has compared its table"
        case "guest.agreed":
            return f"{name} said yes"
        case "guest.proposed":
            column, texts = event.fields["column"], event.fields["texts"]
            return (
                f"{name}'s column {column} has texts that schema.toml does not list: "
                f"{texts}; add them there and run this command again"
            )
        case "guest.declined":
            line = visible(str(event.fields["line"]))
            return f"{name}: {line}"
        case "guest.unfit":
            return f"all parties said yes, but their tables cannot be combined in one agreement: {event.fields['line']}"
    return ""


def _write(place: PartyFolder, host: Host, signed: SignedAgreement) -> None:
    verify(signed)
    write_whole(place["job.toml"], host.declaration.job.encode())
    place.write_recipe(dict(host.files))
    for name, path in host.assets.items():
        _put_beside(path, place, name)
    save_signed(signed, place["agreement.json"])


def _put_beside(asset: Path, place: PartyFolder, name: str) -> None:
    """A recipe's asset in the folder of the signed code; a second name where that can be."""
    path = place.recipe / name
    if path.exists():
        return  # it was compared as the command began
    make_folder(path.parent)
    try:
        os.link(asset, path)
    except OSError:  # another disk
        part = place[".asset.part"]
        shutil.copyfile(asset, part)
        os.replace(part, path)


def _train(args: argparse.Namespace, place: PartyFolder, host: Host) -> int:
    """Run the job; its exit code. Who has not heard of it yet is told meanwhile."""
    asked = require_value(host.run, "the host has chosen a run")
    run = MeetingRun(asked.number, asked.job)
    over = threading.Event()
    thread = threading.Thread(
        target=_tell_late, args=(parse_address(args.listen), host, over), daemon=True
    )
    thread.start()
    words = ["train", run.file, "--key", place.key.name]
    words += ["--passphrase-file", place.passphrase]
    try:
        if place[run.folder].exists() and not place[f".{run.folder}.running"].exists():
            return 0  # else not everybody has heard that it is complete
        return long_command([*words, "--orchestrator", args.listen])
    finally:
        over.set()


def _tell_late(address: tuple[str, int], host: Host, over: threading.Event) -> None:
    while not over.wait(0.5):
        with suppress(SealiftError), RelayClient.dial(address, HOST, 1.0) as client:
            MeetingListener(client, host, sink=discard).receive()
