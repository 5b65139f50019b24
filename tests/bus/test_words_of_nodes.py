"""Texts from nodes become one bounded line of printable text when their message arrives."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.bus.event_details import MOST_REASON_CHARS, fitting
from testbed.bus.messages import (
    BadRecordError,
    Command,
    GuestEvent,
    Lease,
    NodeFacts,
    NodeStatus,
    Ping,
    Reply,
    convert,
    decode,
    encode,
)
from testbed.bus.numbers import MOST_TEXT_CHARS
from testbed.bus.requests import CommandFailedError
from testbed.bus.telemetry import GuestSample

NASTY = "\x1b]0;owned\x07\x1b[2J\r\nnode n2: it is lost\u2028\u202e\x00[/x]"
LONG = NASTY * 20_000


def texts(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for pair in value.items() for each in pair for text in texts(each)]
    if isinstance(value, list | tuple):
        return [text for each in value for text in texts(each)]
    return texts(msgspec.to_builtins(value)) if isinstance(value, msgspec.Struct) else []


def facts(text: str) -> NodeFacts:
    return NodeFacts(
        cpus=1.0, memory_mib=1, machine_cores=1, machine_memory_mib=1, cpu_model=text, kernel=text, driver=text,
        capabilities=(text,), versions={text: text}, address=text, image_port=1, image_free_mib=1, programs=(text,),
    )  # fmt: skip


def raw(record: msgspec.Struct, **texts: object) -> bytes:
    """Return a record as a careless node may send it."""
    return msgspec.json.encode({**msgspec.to_builtins(record), **texts})


@pytest.mark.parametrize("text", [NASTY, LONG])
def test_every_text_of_a_status_and_a_reply_is_one_short_line(text: str) -> None:
    plain = msgspec.to_builtins(facts("x"))
    bad = {name: (text if isinstance(value, str) else value) for name, value in plain.items()}
    bad |= {"versions": {text: text}, "capabilities": [text, text], "programs": [text], "image_stores": [text]}
    status = raw(NodeStatus(node="n1", online=True), node=text, boot=text, reason=text, release=text, facts=bad)
    reply = raw(Reply(id="c", node="n1", status="failed"), node=text, error=text, code=text)
    event = raw(GuestEvent(node="n1", guest="g", event="failed", mono_ns=1), node=text, guest=text, event=text)
    sample = {"guest": text, "state": text, "cap_cores": 1.0, "cpu_s": 1.0, "rss_mib": 1.0, "read_mib": 1.0,
              "written_mib": 1.0, "units_done": 1, "units_mono_ns": 1}  # fmt: skip
    found = [
        decode(NodeStatus, status), decode(Reply, reply), decode(GuestEvent, event), convert(sample, GuestSample)
    ]  # fmt: skip
    words = [each for record in found for each in texts(record)]
    assert any("node n2: it is lost" in each for each in words)
    assert all(each.isprintable() and len(each) <= MOST_TEXT_CHARS + 1 for each in words)


@given(st.text(max_size=300))
def test_what_is_printable_and_short_is_left_as_it_is(text: str) -> None:
    found = decode(NodeStatus, raw(NodeStatus(node="n1", online=False), reason=text)).reason
    assert found.isprintable()
    assert found == text or not text.isprintable()
    again = decode(NodeStatus, encode(NodeStatus(node="n1", online=False, reason=found)))
    assert again.reason == found


def test_the_reason_of_a_guest_and_its_other_details_are_one_line() -> None:
    found = fitting({"reason": LONG, "checksum": NASTY})
    assert all(each.isprintable() for each in texts(found))
    assert len(str(found["reason"])) < MOST_REASON_CHARS + 40


def test_what_a_bad_record_says_is_one_line() -> None:
    payload = raw(Reply(id="c", node="n1", status="failed"), status=LONG)
    with pytest.raises(BadRecordError) as caught:
        decode(Reply, payload, LONG)
    assert all(
        each.isprintable() and len(each) < 3 * MOST_TEXT_CHARS for each in (str(caught.value), caught.value.reason)
    )


def test_a_command_that_failed_tells_it_in_one_line() -> None:
    reply = decode(Reply, raw(Reply(id="c", node="n1", status="failed"), error=LONG))
    error = CommandFailedError("n1", Ping(), f"failed: {reply.error}", reply)
    assert str(error).isprintable()
    assert len(str(error)) < 2 * MOST_TEXT_CHARS


def test_the_name_of_a_leases_holder_is_one_line() -> None:
    lease = Lease(digest="d", holder="h", ttl_s=1.0, expires_unix_s=1.0)
    found = decode(Lease, raw(lease, holder=LONG, released_by=NASTY, release=NASTY))
    assert all(each.isprintable() and len(each) <= MOST_TEXT_CHARS + 1 for each in texts(found))


def test_the_reply_topic_of_a_command_is_not_changed() -> None:
    command = Command(id="c", lease="t", reply_to="a" * 5000, deadline_s=1.0, action=Ping())
    assert decode(Command, encode(command)) == command
