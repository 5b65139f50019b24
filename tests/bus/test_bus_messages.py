from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.bus.envelope import decode_envelope
from testbed.bus.messages import (
    Adopt,
    AnyAction,
    BadRecordError,
    Calibrate,
    Cancel,
    CapChange,
    Command,
    ExpectGuest,
    Fence,
    FetchImage,
    GuestEvent,
    GuestSpec,
    ImageRef,
    Lease,
    ListGuests,
    Migrate,
    MpiJoin,
    MpiPass,
    Native,
    NodeStatus,
    ProgramSpec,
    RankKeys,
    Record,
    RenewFences,
    Reply,
    Save,
    SetCaps,
    Start,
    Stop,
    Watch,
    decode,
    encode,
)
from testbed.bus.migration import Destination
from testbed.bus.telemetry import Telemetry
from testbed.bus.version import PROTOCOL

RECORDS: list[type[Record]] = [Command, Reply, NodeStatus, Telemetry, GuestEvent, Lease]

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
guest = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9-]{0,62}", fullmatch=True)
program = st.from_regex(r"[a-z0-9][a-z0-9-]{0,62}", fullmatch=True)
count = st.integers(0, 2**62)
size = st.floats(0, 4096, allow_nan=False)
mib = st.integers(0, 1 << 26)
programs = st.builds(
    ProgramSpec, name=program, work_units=count, units_per_iteration=count, seed=count, rank=st.integers(0, 1 << 20),
    topology=st.sampled_from(["ring", "tree"]), touched_frac=st.floats(0, 1, exclude_min=True),
)  # fmt: skip
specs = st.builds(
    GuestSpec, guest=guest, run=text, job=count, task=count, program=programs, cpu_cores=size, memory_mib=mib
)
destinations = st.builds(
    Destination, uri=st.just("xen+tls://n1:7/system"), host=st.sampled_from(["192.0.2.1", "n1.example", "fd00::1"]),
    node=st.just("n1"), partition=st.sampled_from(["", "/a/b.c"]), bridge=st.sampled_from(["", "br0"]),
)  # fmt: skip
images = st.builds(ImageRef, image=text, bytes=count, digest=text, generation=count)
fences = st.builds(Fence, clock=st.from_regex(r"[0-9a-f]{16}", fullmatch=True), until_ns=count)
actions: st.SearchStrategy[AnyAction] = st.one_of(
    st.builds(Start, spec=specs, cap_cores=size, image=st.none() | images, cold=st.booleans(), fence=fences),
    st.builds(SetCaps, caps=st.dictionaries(guest, size)),
    st.builds(Save, guest=guest, image=text, at=st.none() | count, store=text),
    st.builds(FetchImage, image=images, host=text, port=st.integers(1, 65535)),
    st.builds(MpiJoin, guest=guest, session=st.from_regex("[0-9a-f]{16}", fullmatch=True)),
    st.builds(Calibrate, cpu_s=st.floats(1e-3, 600)),
    st.builds(
        Watch,
        guests=st.lists(guest).map(tuple),
        every_s=st.floats(0.005, 10),
        for_s=st.floats(0.1, 120),
        caps=st.lists(st.builds(CapChange, after_s=st.floats(0, 120), caps=st.dictionaries(guest, size))).map(tuple),
    ),
    st.builds(Native, program=programs, seconds=st.floats(0.1, 600), cap_cores=size),
    st.builds(Cancel, command=text),
    st.builds(ListGuests, settled=st.lists(guest).map(tuple)),
    st.builds(
        MpiPass,
        guest=guest,
        session=st.just("0" * 16),
        number=st.integers(1, 32),
        keys=st.lists(st.builds(RankKeys, rank=st.integers(0, 9), keys=st.dictionaries(text, text))).map(tuple),
        last=st.booleans(),
    ),
    st.builds(Migrate, guest=guest, to=destinations, budget_s=st.floats(1e-3, 1e6), no_progress_s=st.floats(1e-3, 1e6)),
    st.builds(Adopt, spec=specs, cap_cores=size, fence=st.none() | fences),
    st.builds(ExpectGuest, guest=guest, generation=count, fence=fences),
    st.builds(RenewFences, fence=fences, guests=st.lists(guest).map(tuple)),
    st.builds(Stop, guest=guest, generation=count),
)
commands = st.builds(Command, id=text, lease=text, reply_to=text, deadline_s=st.floats(1e-3, 1e6), action=actions)
plain = st.recursive(
    st.none() | st.booleans() | count | size | text,
    lambda inner: st.lists(inner) | st.dictionaries(text, inner),
    max_leaves=8,
)
STATUSES = ["accepted", "done", "failed", "cancelled", "expired", "rejected"]
replies = st.builds(
    Reply, id=text, node=text, status=st.sampled_from(STATUSES), result=st.dictionaries(text, plain), elapsed_s=size
)


@given(commands | replies)
def test_what_is_encoded_is_decoded(record: Record) -> None:
    assert decode(type(record), encode(record)) == record


@given(commands, st.dictionaries(st.text("uvwxyz", min_size=3), plain, min_size=1))
def test_unknown_fields_are_ignored_at_every_level(command: Command, news: dict[str, Any]) -> None:
    raw = json.loads(encode(command))
    assert decode(Command, json.dumps({**raw, **news, "action": {**raw["action"], **news}})) == command


def test_missing_optional_fields_get_their_defaults() -> None:
    reply = decode(Reply, b'{"v": 1, "id": "a", "node": "n1", "status": "done"}')
    assert (reply.result, reply.error, reply.elapsed_s, reply.final) == ({}, None, 0.0, True)
    status = decode(NodeStatus, b'{"v": 1, "node": "n1", "online": false}')
    assert status.facts is None
    assert status.boot == ""


@pytest.mark.parametrize(
    ("raw", "complaint"),
    [
        ('{"id": "a", "node": "n", "status": "done"}', "no schema version"),
        ('{"v": 0, "id": "a", "node": "n", "status": "done"}', r"protocol 0 \(release unknown\); this side reads 1 to"),
        (f'{{"v": {PROTOCOL + 1}, "release": "9.1"}}', rf"protocol {PROTOCOL + 1} \(release 9\.1\); this side reads 1"),
        ('{"v": "1", "id": "a", "node": "n", "status": "done"}', r"Expected `int \| null`, got `str` - at `\$.v`"),
        ('{"v": 1, "node": "n", "status": "done"}', "missing required field `id`"),
        ('{"v": 1, "id": 7, "node": "n", "status": "done"}', r"Expected `str`, got `int` - at `\$.id`"),
        ('{"v": 1, "id": "a", "node": "n", "status": "perhaps"}', r"'perhaps' - at `\$.status`"),
        ('{"v": 1, "id": "a", "node": "n", "status": "done", "elapsed_s": null}', r"at `\$.elapsed_s`"),
        ("[1]", "Expected `object`"),
        ("", "truncated"),
        ('{"v": 1, "id": "a", "node": "n", "status": "done", "result": {"x": ' + "[" * 100_000, "nested too deeply"),
    ],
)
def test_a_bad_reply_says_what_is_wrong(raw: str, complaint: str) -> None:
    with pytest.raises(BadRecordError, match=complaint) as caught:
        decode(Reply, raw, "some/topic")
    assert caught.value.topic == "some/topic"
    assert "some/topic" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_an_earlier_controller_says_means_what_it_meant() -> None:
    program = {"name": "eatcpu", "work_units": 1, "units_per_iteration": 1, "seed": 1}
    spec = {"guest": "a", "run": "r", "job": 1, "task": 0, "program": program, "cpu_cores": 1.0, "memory_mib": 64}
    raw = {"v": 1, "id": "a", "lease": "l", "reply_to": "r", "deadline_s": 1}
    start = decode(Command, json.dumps({**raw, "action": {"kind": "start", "spec": spec, "cap_cores": 1}})).action
    assert isinstance(start, Start)
    assert (start.cold, start.spec.program.touched_frac) == (False, 1.0)
    save = decode(Command, json.dumps({**raw, "action": {"kind": "save", "guest": "a", "image": "a.img"}})).action
    assert save == Save(guest="a", image="a.img", at=None, store="")
    for bad in (0, -0.5, 1.01):
        spoilt = {**spec, "program": {**program, "touched_frac": bad}}
        with pytest.raises(BadRecordError, match=r"touched_frac"):
            decode(Command, json.dumps({**raw, "action": {"kind": "start", "spec": spoilt, "cap_cores": 1}}))


SAMPLE = (
    '{"v":1,"node":"n","mono_ns":1,"cpu_frac":0,"memory_used_mib":0,"disk_read_mib":0,"disk_written_mib":0,'
    '"net_received_mib":0,"net_sent_mib":0,"agent_cpu_s":0,"agent_rss_mib":0,"guests":[{"guest":"g","state":"running",'
    '%s"cpu_s":1,"rss_mib":1,"read_mib":0,"written_mib":0,"units_done":5,"units_mono_ns":1}]}'
)


@pytest.mark.parametrize(
    ("told", "in_force", "wanted"),
    [
        ('"cap_cores":0.5,', None, 0.5),  # older agents reported the requested cap under this name
        ('"cap_cores":0.9,"wanted_cores":0.5,', 0.9, 0.5),
        ('"cap_cores":null,"wanted_cores":0.5,', None, 0.5),
        ('"cap_cores":null,', None, None),
    ],
)
def test_caps_of_a_sample_are_those_in_force_and_those_asked_for(
    told: str, in_force: float | None, wanted: float | None
) -> None:
    record = decode(Telemetry, SAMPLE % told)
    (sample,) = record.guests
    assert (sample.cap_cores, sample.wanted_cores) == (in_force, wanted)
    assert decode(Telemetry, encode(record)) == record


def test_commands_are_a_closed_set() -> None:
    raw = {"v": 1, "id": "a", "lease": "l", "reply_to": "r", "deadline_s": 1, "action": {"kind": "format-disk"}}
    with pytest.raises(BadRecordError, match=r"'format-disk' - at `\$.action.kind`"):
        decode(Command, json.dumps(raw))
    with pytest.raises(BadRecordError, match=r"at `\$.deadline_s`"):
        decode(Command, json.dumps({**raw, "action": {"kind": "ping"}, "deadline_s": 0}))


def _mutilated(record: bytes, at: int, patch: bytes) -> bytes:
    at %= len(record) + 1
    return record[:at] + patch + record[at + len(patch) :]


garbage = st.binary(max_size=80) | st.builds(
    _mutilated, (commands | replies).map(encode), count, st.binary(min_size=1, max_size=4)
)


@given(garbage, st.sampled_from(RECORDS))
def test_bytes_that_are_no_record_raise_nothing_but_bad_record(payload: bytes, kind: type[Record]) -> None:
    try:
        record = decode(kind, payload, "t")
    except BadRecordError:
        pass
    else:
        assert isinstance(record, kind)
        assert 1 <= record.v <= PROTOCOL
    envelope = decode_envelope(payload)
    assert isinstance(envelope.id, str)


def test_no_command_carries_what_a_node_would_run() -> None:
    """A rank is its node's own program; other nodes may only send keys of MPI's transport for it."""
    assert MpiJoin.__struct_fields__ == ("guest", "session", "generation")
    assert MpiPass.__struct_fields__ == ("guest", "session", "number", "keys", "last", "generation")
    for session in ("", "0" * 15, "0" * 16 + "\n", "-" * 16, "../../../../../a"):
        command = Command(id="1", lease="l", reply_to="r", deadline_s=1.0, action=MpiJoin(guest="g", session=session))
        with pytest.raises(BadRecordError):
            decode(Command, encode(command))


def test_the_sender_of_a_bad_command_can_be_told() -> None:
    envelope = decode_envelope(b'{"v": 9, "id": "c1", "reply_to": "back", "action": {"kind": "unheard-of"}}')
    assert (envelope.id, envelope.reply_to) == ("c1", "back")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('"mono_ns":' + "9" * 40, r"bad record on lab/n1: Expected `int` <= 9223372036854775807 - at `\$\.mono_ns`"),
        ('"mono_ns":-1', r"`int` >= 0 - at `\$\.mono_ns`"),
        ('"mono_ns":1,"cpu_frac":1e308', r"`float` <= 1000000000000000\.0 - at `\$\.cpu_frac`"),
        ('"mono_ns":1,"cpu_frac":1e400', r"out of range - at `\$\.cpu_frac`"),
        ('"mono_ns":1,"cpu_frac":null', r"got `null` - at `\$\.cpu_frac`"),
    ],
)
def test_numbers_that_measure_nothing_are_refused(text: str, words: str) -> None:
    with pytest.raises(BadRecordError, match=words):
        decode(Telemetry, f'{{"v":1,"node":"n1",{text}}}'.encode(), "lab/n1")


@pytest.mark.parametrize(
    ("key", "value"),
    [("workers", 10**9), ("workers", 0), ("ranks", 10**9), ("work_units", 2**63), ("rank", -1)],
)
def test_a_program_that_would_take_a_nodes_memory_is_refused(key: str, value: int) -> None:
    program = {"name": "eatcpu", "work_units": 1, "units_per_iteration": 1, "seed": 1, key: value}
    spec = {"guest": "g", "run": "r", "job": 1, "task": 0, "cpu_cores": 1.0, "memory_mib": 64, "program": program}
    action = {"kind": "start", "spec": spec, "cap_cores": 1.0}
    command = {"v": 1, "id": "i", "lease": "l", "reply_to": "t", "deadline_s": 1.0, "action": action}
    with pytest.raises(BadRecordError, match=rf"at `\$\.action\.spec\.program\.{key}`"):
        decode(Command, msgspec.json.encode(command), "t")
