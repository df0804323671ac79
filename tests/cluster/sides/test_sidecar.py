"""The scheduler's Python side: distributed's coordination, for any client."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from distributed.protocol import to_serialize
from python_sides import SOON, Hub, HubClient

from treadle.errors import _pickled as errors


class Unpickled:
    """Counts where it is unpickled."""

    count = 0

    def __reduce__(self) -> Any:
        return _unpickled, ()


def _unpickled() -> Unpickled:
    Unpickled.count += 1
    return Unpickled()


# queues


def test_a_queue_is_first_in_first_out(alice: HubClient, bob: HubClient) -> None:
    for client in (alice, bob):
        client.sidecar("queue_create", name="q", maxsize=0)
    for value in (1, "two", (3, [4, {"five": 6.0}])):
        alice.sidecar("queue_put", name="q", data=value)
    assert alice.sidecar("queue_qsize", name="q") == 3
    records = [bob.sidecar("queue_get", name="q", timeout=None) for _ in range(3)]
    # Lists become tuples, as on the way through distributed's messages.
    assert [record["value"] for record in records] == [1, "two", (3, (4, {"five": 6.0}))]


def test_a_get_waits_for_a_put(alice: HubClient, bob: HubClient) -> None:
    alice.sidecar("queue_create", name="q", maxsize=0)
    waiting = bob.start("sidecar", "queue_get", name="q", timeout=None)
    alice.sidecar("queue_put", name="q", data=1)
    assert waiting.result(SOON)["value"] == 1


def test_an_empty_queue_times_out(alice: HubClient) -> None:
    alice.sidecar("queue_create", name="q", maxsize=0)
    with pytest.raises(asyncio.TimeoutError):
        alice.sidecar("queue_get", name="q", timeout=0.01)


def test_a_full_queue_times_out(alice: HubClient) -> None:
    alice.sidecar("queue_create", name="q", maxsize=1)
    alice.sidecar("queue_put", name="q", data=1)
    with pytest.raises(asyncio.TimeoutError):
        alice.sidecar("queue_put", name="q", data=2, timeout=0.01)


def test_a_client_that_left_takes_nothing_from_a_queue(alice: HubClient, bob: HubClient) -> None:
    alice.sidecar("queue_create", name="q", maxsize=0)
    bob.start("sidecar", "queue_get", name="q", timeout=None)
    bob.leave()
    alice.sidecar("queue_put", name="q", data=1)
    assert alice.sidecar("queue_get", name="q", timeout=SOON)["value"] == 1


def test_the_scheduler_does_not_unpickle_what_a_queue_holds(
    alice: HubClient, bob: HubClient
) -> None:
    alice.sidecar("queue_create", name="q", maxsize=0)
    Unpickled.count = 0
    alice.sidecar("queue_put", name="q", data=Unpickled())
    assert Unpickled.count == 0
    assert isinstance(bob.sidecar("queue_get", name="q")["value"], Unpickled)
    assert Unpickled.count == 1


# futures in queues and variables


def test_a_future_in_a_queue_is_held_until_the_receiver_has_it(
    hub: Hub, alice: HubClient, bob: HubClient
) -> None:
    hub.keys["x"] = ("finish", None)
    alice.sidecar("queue_create", name="q", maxsize=0)
    alice.sidecar("queue_put", name="q", key="x")
    assert hub.held == {"x"}
    record = bob.sidecar("queue_get", name="q")
    assert record == {"type": "Future", "value": "x", "state": "memory"}
    assert hub.held == {"x"}
    bob.sidecar("stream:queue-future-release", name="q", key="x")
    assert hub.held == set()


def test_a_future_in_a_queue_that_is_closed_is_released(hub: Hub, alice: HubClient) -> None:
    hub.keys["x"] = ("retry",)
    alice.sidecar("queue_create", name="q", maxsize=0)
    alice.sidecar("queue_put", name="q", key="x")
    alice.sidecar("stream:queue_release", name="q")
    assert hub.held == set()


def test_a_key_may_become_known_later(
    hub: Hub, alice: HubClient, eventually: Callable[[Callable[[], bool]], None]
) -> None:
    alice.sidecar("queue_create", name="q", maxsize=0)
    putting = alice.start("sidecar", "queue_put", name="q", key="late")
    eventually(lambda: hub.watched.count("late") > 1)
    assert not putting.done()
    hub.keys["late"] = ("retry",)
    putting.result(SOON)
    assert alice.sidecar("queue_get", name="q")["state"] == "waiting"


def test_a_key_that_stays_unknown_is_an_error(alice: HubClient, hub: Hub) -> None:
    alice.sidecar("queue_create", name="q", maxsize=0)
    # Two classes before Python 3.11.
    with pytest.raises((TimeoutError, asyncio.TimeoutError), match="unknown to scheduler"):
        alice.sidecar("queue_put", name="q", key="never", timeout=0.05)
    assert hub.held == set()


def test_a_variable_holds_a_future(hub: Hub, alice: HubClient, bob: HubClient) -> None:
    hub.keys["x"] = hub.keys["y"] = ("finish", None)
    alice.sidecar("variable_set", name="v", key="x", timeout="30 s")
    record = bob.sidecar("variable_get", name="v", timeout=None, client=bob.name)
    assert (record["type"], record["value"], record["state"]) == ("Future", "x", "memory")
    alice.sidecar("variable_set", name="v", key="y", timeout="30 s")
    assert hub.held == {"x", "y"}, "bob has not said that he has it"
    bob.sidecar("stream:variable-future-received-confirm", name="v", key="x", token=record["token"])
    alice.sidecar("variable_get", name="v", timeout=None)
    assert hub.held == {"y"}


def test_a_variable_that_is_deleted_releases_its_future(hub: Hub, alice: HubClient) -> None:
    hub.keys["x"] = ("finish", None)
    alice.sidecar("variable_set", name="v", key="x", timeout="30 s")
    alice.sidecar("stream:variable_delete", name="v")
    assert hub.held == set()
    with pytest.raises(asyncio.TimeoutError):
        alice.sidecar("variable_get", name="v", timeout=0.01)


def test_a_failed_future_brings_its_exception(hub: Hub, alice: HubClient) -> None:
    try:
        raise ZeroDivisionError("by zero")
    except ZeroDivisionError as error:
        payload = errors.dump(error)
    hub.keys["x"] = ("native_failed", "raised", "x", payload)
    alice.sidecar("variable_set", name="v", key="x", timeout="30 s")
    record = alice.sidecar("variable_get", name="v", timeout=None)
    assert record["state"] == "erred"
    exception = pickle.loads(record["exception"])
    assert type(exception) is ZeroDivisionError
    assert pickle.loads(record["traceback"]).tb_frame.f_code.co_name == (
        "test_a_failed_future_brings_its_exception"
    )


def test_a_future_is_seen_as_it_is_when_it_is_got(hub: Hub, alice: HubClient) -> None:
    hub.keys["x"] = ("retry",)
    alice.sidecar("variable_set", name="v", key="x", timeout="30 s")
    assert alice.sidecar("variable_get", name="v", timeout=None)["state"] == "waiting"
    hub.becomes("x", "finish", None)
    assert alice.sidecar("variable_get", name="v", timeout=None)["state"] == "memory"
    hub.becomes("x", "native_cancelled", None, None)
    assert alice.sidecar("variable_get", name="v", timeout=None)["state"] == "lost"


def test_a_variable_that_is_not_there_is_waited_for(alice: HubClient, bob: HubClient) -> None:
    waiting = bob.start("sidecar", "variable_get", name="v", timeout=None)
    alice.sidecar("variable_set", name="v", data=[1, 2], timeout="30 s")
    assert waiting.result(SOON)["value"] == (1, 2)


# locks


def acquire(client: HubClient, lease: str, name: str = "lock", timeout: Any = None) -> Any:
    return client.start("sidecar", "semaphore_acquire", name=name, timeout=timeout, lease_id=lease)


def register(client: HubClient, name: str = "lock", max_leases: int = 1) -> None:
    client.sidecar("semaphore_register", name=name, max_leases=max_leases, lease_timeout=30)


def test_a_semaphore_counts(alice: HubClient) -> None:
    register(alice, max_leases=2)
    assert acquire(alice, "a").result(SOON)
    assert acquire(alice, "b").result(SOON)
    assert not acquire(alice, "c", timeout=0.01).result(SOON)
    alice.sidecar("semaphore_release", name="lock", lease_id="a")
    assert alice.sidecar("semaphore_value", name="lock") == 1
    assert acquire(alice, "c").result(SOON)


def test_other_numbers_of_leases_are_an_error(alice: HubClient) -> None:
    register(alice, max_leases=2)
    with pytest.raises(ValueError, match="Inconsistent max leases"):
        register(alice, max_leases=3)


def test_the_locks_of_a_client_that_left_are_free(alice: HubClient, bob: HubClient) -> None:
    register(alice)
    assert acquire(alice, "a").result(SOON)
    waiting = acquire(bob, "b")
    alice.leave()
    assert waiting.result(SOON)


def test_a_client_that_left_gets_no_lock(alice: HubClient, bob: HubClient) -> None:
    register(alice)
    assert acquire(alice, "a").result(SOON)
    acquire(bob, "b")
    bob.leave()
    alice.sidecar("semaphore_release", name="lock", lease_id="a")
    assert alice.sidecar("semaphore_value", name="lock") == 0
    assert acquire(alice, "c").result(SOON)


def test_what_was_released_is_not_released_again(alice: HubClient, bob: HubClient) -> None:
    register(alice)
    assert acquire(alice, "a").result(SOON)
    bob.sidecar("semaphore_release", name="lock", lease_id="a")
    assert acquire(bob, "a").result(SOON), "the same lease, but another holder"
    alice.leave()
    assert bob.sidecar("semaphore_value", name="lock") == 1


def test_only_the_scheduler_says_who_left(alice: HubClient, bob: HubClient) -> None:
    register(alice)
    assert acquire(alice, "a").result(SOON)
    with pytest.raises(NotImplementedError):
        bob.sidecar("client-left", client=alice.name)
    assert bob.sidecar("semaphore_value", name="lock") == 1


def multi(client: HubClient, user: str, *names: str) -> Any:
    return client.start(
        "sidecar",
        "multi_lock_acquire",
        locks=list(names),
        id=user,
        timeout=None,
        num_locks=len(names),
    )


def test_a_multi_lock_takes_all_of_its_names(alice: HubClient, bob: HubClient) -> None:
    assert multi(alice, "a", "x", "y").result(SOON)
    waiting = multi(bob, "b", "y", "z")
    assert multi(alice, "c", "w").result(SOON)
    assert not waiting.done()
    alice.sidecar("multi_lock_release", id="a")
    assert waiting.result(SOON)


def test_the_multi_locks_of_a_client_that_left_are_free(alice: HubClient, bob: HubClient) -> None:
    assert multi(alice, "a", "x", "y").result(SOON)
    waiting = multi(bob, "b", "x")
    alice.leave()
    assert waiting.result(SOON)


def test_a_client_that_left_waits_for_no_multi_lock(
    hub: Hub, alice: HubClient, bob: HubClient
) -> None:
    carol = hub.add_client("Client-carol")
    assert multi(alice, "a", "x").result(SOON)
    multi(bob, "b", "x")
    waiting = multi(carol, "c", "x")
    bob.leave()
    alice.sidecar("multi_lock_release", id="a")
    assert waiting.result(SOON)


# events and metadata


def test_events_wake_those_that_wait(alice: HubClient, bob: HubClient) -> None:
    waiting = bob.start("sidecar", "event_wait", name="e", timeout=None)
    assert not alice.sidecar("event_is_set", name="e")
    assert not alice.sidecar("event_wait", name="e", timeout=0.01)
    alice.sidecar("event_set", name="e")
    assert waiting.result(SOON)
    alice.sidecar("event_clear", name="e")
    assert not bob.sidecar("event_is_set", name="e")


def test_events_of_a_topic_reach_those_that_subscribed(
    alice: HubClient, bob: HubClient, eventually: Callable[[Callable[[], bool]], None]
) -> None:
    bob.sidecar("stream:subscribe-topic", topic="t", client=bob.name)
    for number in range(3):
        alice.sidecar("log_event", topic="t", msg=number)
    alice.sidecar("log_event", topic=["u", "v"], msg="other")
    eventually(lambda: len(bob.called) == 3)
    assert [operation for operation, _ in bob.called] == ["event"] * 3
    assert [about["event"][1] for _, about in bob.called] == [0, 1, 2]
    assert {about["topic"] for _, about in bob.called} == {"t"}
    assert [msg for _, msg in alice.sidecar("events", topic="t")] == [0, 1, 2]
    assert set(alice.sidecar("events", topic=None)) == {"t", "u", "v"}
    bob.sidecar("stream:unsubscribe-topic", topic="t", client=bob.name)
    alice.sidecar("log_event", topic="t", msg=3)
    assert len(bob.called) == 3


def test_a_client_that_left_gets_no_events(hub: Hub, alice: HubClient, bob: HubClient) -> None:
    bob.sidecar("stream:subscribe-topic", topic="t", client=bob.name)
    bob.leave()
    hub.nodes[bob.name] = bob
    alice.sidecar("log_event", topic="t", msg=1)
    assert bob.called == []


def test_metadata_is_nested(alice: HubClient) -> None:
    alice.sidecar("set_metadata", keys=["x", "y"], value=1)
    alice.sidecar("set_metadata", keys=["x", "z", "w"], value=2)
    assert alice.sidecar("get_metadata", keys=["x"]) == {"y": 1, "z": {"w": 2}}
    assert alice.sidecar("get_metadata", keys=["x", "no"], default=None) is None
    with pytest.raises(KeyError):
        alice.sidecar("get_metadata", keys=["no"])


# published data


def publish(client: HubClient, name: str, value: Any, keys: list[str], **kwargs: Any) -> None:
    client.start("sidecar", "stream:publish_flush_batched_send", uid="u")
    client.sidecar(
        "publish_put",
        names=[name],
        keys=[keys],
        data=[to_serialize(value)],
        client=client.name,
        uid="u",
        **kwargs,
    )


def test_published_data_and_its_keys_are_kept(hub: Hub, alice: HubClient, bob: HubClient) -> None:
    hub.keys["x"] = ("finish", None)
    Unpickled.count = 0
    publish(alice, "data", Unpickled(), ["x"], override=False)
    assert hub.held == {"x"}
    alice.leave()
    assert hub.held == {"x"}
    assert bob.sidecar("publish_list") == ["data"]
    assert Unpickled.count == 0
    found, missing = bob.sidecar("publish_get", names=["data", "other"])
    assert isinstance(found["data"], Unpickled)
    assert missing is None
    bob.start("sidecar", "stream:publish_flush_batched_send", uid="v")
    bob.sidecar("publish_delete", names=["data"], client=bob.name, uid="v")
    assert hub.held == set()


def test_a_published_name_is_taken_unless_it_is_overridden(hub: Hub, alice: HubClient) -> None:
    hub.keys["x"] = hub.keys["y"] = ("finish", None)
    publish(alice, "data", 1, ["x"], override=False)
    with pytest.raises(KeyError, match="already exists"):
        publish(alice, "data", 2, ["y"], override=False)
    publish(alice, "data", 2, ["y"], override=True)
    assert hub.held == {"y"}
    assert alice.sidecar("publish_get", names=["data"])[0]["data"] == 2
