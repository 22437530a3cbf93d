"""What waits at a server, and which of it is answered together: with a clock of our own."""

from __future__ import annotations

from collections import Counter

import pytest

from sealift.serve.batching import PendingQuestion, RequestQueue, places_each
from sealift.serve.protocol import BusyError
from sealift.train.job.settings import ServingTable


def question(client: str, rows: int = 1, **more: object) -> PendingQuestion:
    plain: dict = {
        "client": client,
        "work": "predict",
        "rows": rows,
        "payload": b"",
        "deadline_s": 100.0,
        "deliver": lambda rows, count, final: None,
        "refuse": lambda error: None,
    }
    return PendingQuestion(**{**plain, **more})


def make(*, mixed: bool = True, **changes: object) -> RequestQueue:
    plain: dict = {
        "max_batch_rows": 4,
        "max_delay_ms": 1000.0,
        "max_waiting_rows": 8,
        "max_waiting": 3,
    }
    return RequestQueue(ServingTable(**{**plain, **changes}), mixed=mixed)


def test_one_client_alone_does_not_wait() -> None:
    queue, only = make(), question("ada")
    queue.admit(only, 10.0)
    assert queue.wait_s(10.0, 1) == 0.0
    assert queue.take_batch(10.0, 1) == [only]


def test_others_that_asked_just_now_are_waited_for_and_no_longer_than_the_delay() -> (
    None
):
    queue, first = make(), question("ada")
    queue.admit(first, 10.0)
    assert queue.take_batch(10.0, 2) == []
    assert queue.wait_s(10.25, 2) == 0.75
    second = question("bern")
    queue.admit(second, 10.5)
    assert queue.take_batch(10.5, 2) == [first, second]
    queue.admit(question("ada"), 11.0)
    assert queue.take_batch(11.9, 2) == []
    assert len(queue.take_batch(12.0, 2)) == 1


def test_a_full_batch_does_not_wait_and_takes_no_more() -> None:
    queue = make()
    for client in ("ada", "bern", "cleo"):
        queue.admit(question(client, 2), 10.0)
    assert [each.client for each in queue.take_batch(10.0, 9)] == ["ada", "bern"]
    assert queue.waiting_rows == 2


def test_a_question_larger_than_a_batch_goes_alone() -> None:
    queue = make()
    queue.admit(question("ada", 6), 10.0)
    queue.admit(question("bern", 1), 10.0)
    assert [each.rows for each in queue.take_batch(11.0, 2)] == [6]


def test_clients_are_not_mixed_unless_the_form_says_so() -> None:
    queue = make(mixed=False)
    for client in ("ada", "bern", "ada"):
        queue.admit(question(client), 10.0)
    assert [each.client for each in queue.take_batch(11.0, 2)] == ["ada", "ada"]
    assert [each.client for each in queue.take_batch(11.0, 2)] == ["bern"]


def test_clients_take_turns() -> None:
    queue = make(max_batch_rows=1)
    for client in ("ada", "ada", "ada", "bern"):
        queue.admit(question(client), 10.0)
    taken = [queue.take_batch(11.0, 2)[0].client for _ in range(4)]
    assert taken == ["ada", "bern", "ada", "ada"]


def test_a_client_beyond_its_own_limit_is_told_when_to_come_again() -> None:
    queue = make()
    held = [question("ada") for _ in range(3)]
    for each in held:
        queue.admit(each, 10.0)
    queue.note_batch(2, 1.0)
    with pytest.raises(BusyError) as caught:
        queue.admit(question("ada"), 10.0)
    assert caught.value.code == "busy"
    assert caught.value.retry_s == 1.5  # three rows of half a second
    queue.admit(question("bern"), 10.0)
    queue.forget(held[0])
    queue.admit(question("ada"), 10.0)


def test_rows_beyond_the_limit_of_all_are_refused() -> None:
    queue = make()
    queue.admit(question("ada", 4), 10.0)
    with pytest.raises(BusyError):
        queue.admit(question("bern", 5), 10.0)
    queue.admit(question("bern", 4), 10.0)


def test_what_is_answered_counts_until_it_is() -> None:
    queue = make(max_waiting=1)
    first = question("ada")
    queue.admit(first, 10.0)
    queue.take_batch(10.0, 1)
    with pytest.raises(BusyError):
        queue.admit(question("ada"), 10.0)
    queue.forget(first)
    queue.admit(question("ada"), 10.0)


def test_who_left_or_waited_too_long_is_found() -> None:
    queue = make()
    gone, late = question("ada", gone=True), question("bern", deadline_s=11.0)
    stays = question("cleo")
    for each in (gone, late, stays):
        queue.admit(each, 10.0)
    assert queue.late(10.0) == [gone]
    assert queue.late(11.0) == [gone, late]
    for each in (gone, late):
        queue.forget(each)
    assert queue.everything() == [stays]
    assert queue.waiting_rows == 1


def test_so_many_generations_and_no_more() -> None:
    queue = make(streams=1)
    for client in ("ada", "bern"):
        queue.admit(question(client, work="generate"), 10.0)
    first = queue.take_stream(Counter())
    assert first is not None
    assert first.client == "ada"
    assert queue.take_stream(Counter(ada=1)) is None
    assert queue.take_batch(99.0, 1) == []


def test_nobody_has_all_places_and_who_has_fewest_comes_first() -> None:
    """Sessions from one address are one when places are shared (rule V16)."""
    queue = make(streams=4)
    for session in ("a1", "a2"):
        queue.admit(question(session, work="generate", identity="a"), 10.0)
    queue.admit(question("b1", work="generate", identity="b"), 11.0)

    def take(**held: int) -> object:
        found = queue.take_stream(Counter(held))
        return found and found.client

    assert not queue.awaits_place(Counter(a=2, c=2))
    assert take(a=2, c=2) is None
    assert take(a=2, b=1) == "b1"
    assert take(a=3) is None
    assert not queue.awaits_place(Counter(a=3))
    assert take(a=2, b=1) == "a1"
    assert take() == "a2"


@pytest.mark.parametrize(
    ("streams", "each", "most"), [(4, 0, 3), (1, 0, 1), (4, 2, 2), (2, 9, 9)]
)
def test_how_many_places_one_may_have(streams: int, each: int, most: int) -> None:
    assert places_each(ServingTable(streams=streams, streams_each=each)) == most


def test_who_has_most_waiting_makes_room_for_others() -> None:
    """Nobody is kept out by one client's many rows; nobody displaces who has fewer."""
    queue = make(max_waiting_rows=8, max_waiting=4)
    first, second, third = (question("greedy", rows) for rows in (2, 3, 3))
    for at_s, each in enumerate((first, second, third)):
        assert queue.admit(each, float(at_s)) == []
    assert queue.admit(question("ada", 2), 4.0) == [third]
    assert (queue.waiting, queue.waiting_rows) == (3, 7)
    with pytest.raises(BusyError):
        queue.admit(question("greedy", 3), 5.0)
    with pytest.raises(BusyError):
        queue.admit(question("ada", 4), 5.0)
    assert queue.waiting_rows == 7
    assert queue.admit(question("greedy", 1), 6.0) == []
