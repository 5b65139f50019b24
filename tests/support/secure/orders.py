"""Forbidden commands with the live lease's token, as a thief of the token or a hostile controller can send them.

Records are checked only when an agent decodes them, not when they are made, so each of these is really sent.
"""

from __future__ import annotations

import msgspec

from support.live import ENDLESS_UNITS
from testbed.bus.messages import (
    Adopt,
    AnyAction,
    GuestSpec,
    Migrate,
    MpiJoin,
    MpiPass,
    Native,
    ProgramSpec,
    RankKeys,
    SetCaps,
    Start,
    Stop,
)
from testbed.bus.migration import Destination
from testbed.bus.mpi_keys import MOST_KEYS

SESSION = "0" * 16
LAUNCH = "/usr/bin/hydra_pmi_proxy --control-port 203.0.113.9:1 --proxy-id 0"
OUTSIDE = "../../outside"
HUGE = 10**40
TARGETS = (
    "qemu+ext://127.0.0.1/system?command=/bin/sh", "qemu+ssh://127.0.0.1/system?keyfile=/root/.ssh/id_rsa",
    "qemu+unix:///system?socket=/tmp/x", "qemu+tls://203.0.113.9/system", "qemu+tls://127.0.0.1/system?no_verify=1",
    "qemu+tcp://127.0.0.1:80/system", "test:///default", "qemu+ext://127.0.0.1/system", "null://n1/system", "",
    "x" * 100_000,
)  # fmt: skip
HERE = Destination(uri="qemu+tls://127.0.0.1/system", host="127.0.0.1", node="n1")


def spec_of(guest: str, memory_mib: int, **program: object) -> GuestSpec:
    """Return an endless guest."""
    wanted = {"name": "eatcpu", "work_units": ENDLESS_UNITS, "units_per_iteration": 100, "seed": 1, **program}
    return GuestSpec(
        guest=guest, run="t", job=1, task=0, program=ProgramSpec(**wanted), cpu_cores=1.0, memory_mib=memory_mib,
        address="10.77.1.9/16",
    )  # fmt: skip


def _programs(spec: GuestSpec) -> list[ProgramSpec]:
    """Return programs that no node has, and nonsensical numbers."""
    changes: tuple[dict[str, object], ...] = (
        {"name": "/bin/sh"}, {"name": OUTSIDE}, {"name": ""}, {"name": "x\ny"}, {"name": "e" * 100_000},
        {"workers": 10**9}, {"workers": 0}, {"ranks": 10**9}, {"ranks": 0}, {"rank": -1}, {"seed": -1}, {"seed": HUGE},
        {"work_units": -1}, {"work_units": HUGE}, {"units_per_iteration": -1}, {"units_per_iteration": HUGE},
        {"topology": "x init=/bin/sh"}, {"imbalance": "x"}, {"message_bytes": -1}, {"message_bytes": 10**12},
        {"touched_frac": 0.0}, {"touched_frac": 1e308},
    )  # fmt: skip
    return [msgspec.structs.replace(spec.program, **change) for change in changes]


def _specs(spec: GuestSpec) -> list[GuestSpec]:
    """Return nonsensical guests."""
    changes: tuple[dict[str, object], ...] = (
        {"guest": OUTSIDE}, {"guest": ""}, {"guest": "-rf"}, {"guest": "g\n"}, {"guest": "g" * 64},
        {"address": "10.77.1.9/16 init=/bin/sh"}, {"memory_mib": 10**9}, {"memory_mib": -1}, {"memory_mib": HUGE},
        {"cpu_cores": -1.0}, {"cpu_cores": 1e308}, {"job": -1}, {"job": HUGE}, {"task": -1},
        *({"program": program} for program in _programs(spec)),
    )  # fmt: skip
    return [msgspec.structs.replace(spec, **change) for change in changes]


def migrations(guest: str) -> list[AnyAction]:
    """Return migrations to programs, keys, sockets and other hosts, and with nonsensical times."""
    move = Migrate(guest=guest, to=HERE, budget_s=5.0, no_progress_s=5.0)
    changes: tuple[dict[str, object], ...] = (
        *({"uri": uri} for uri in TARGETS), {"host": "127.0.0.1 -o x"}, {"host": ""}, {"node": "../n1"}, {"node": ""},
        {"partition": "/../../x"}, {"bridge": "x; reboot"},
    )  # fmt: skip
    replace = msgspec.structs.replace
    return [
        move, *(replace(move, to=replace(HERE, **change)) for change in changes), replace(move, guest=OUTSIDE),
        *(replace(move, **{key: value}) for key in ("budget_s", "no_progress_s") for value in (-1.0, 0.0, 1e308)),
    ]  # fmt: skip


def adoptions(spec: GuestSpec) -> list[AnyAction]:
    """Return adoptions of guests that never arrived, and of things that are not guests."""
    return [
        Adopt(spec=spec, cap_cores=0.1), *(Adopt(spec=each, cap_cores=0.1) for each in _specs(spec)),
        Adopt(spec=spec, cap_cores=-1.0), Adopt(spec=spec, cap_cores=1e308),
    ]  # fmt: skip


def joins(guest: str) -> list[AnyAction]:
    """Return MPI joins and passes for a guest that is not a rank, and for things that are not guests."""
    return [
        MpiJoin(guest=guest, session=SESSION), MpiJoin(guest=guest, session=OUTSIDE),
        MpiJoin(guest=guest, session=LAUNCH), MpiJoin(guest=guest, session=""), MpiJoin(guest=OUTSIDE, session=SESSION),
        MpiPass(guest=guest, session=LAUNCH, number=1), MpiPass(guest=OUTSIDE, session=SESSION, number=1),
        *(MpiPass(guest=guest, session=SESSION, number=number) for number in (-1, 0, (1 << 20) + 1, HUGE)),
        MpiPass(guest=guest, session=SESSION, number=1, keys=(RankKeys(rank=-1, keys={}),)),
        MpiPass(guest=guest, session=SESSION, number=1, keys=(RankKeys(rank=HUGE, keys={}),)),
    ]  # fmt: skip


def passes(guest: str, session: str) -> list[AnyAction]:
    """Return invalid passes for rank 0 of 2 in its first barrier: with foreign keys, and too early."""
    keys: tuple[tuple[int, dict[str, str]], ...] = (
        (1, {LAUNCH: LAUNCH}), (1, {"-allgather-1-1": LAUNCH}), (1, {"-allgather-1-0": "00"}), (7, {}),
        (1, {"PMI_process_mapping": "(vector,(0,1,2))"}), (1, {"-allgather-1-1": "[99999]"}),
        (1, {"-allgather-1-1": "segments=2"}), (1, {"-allgather-99-1": "00"}),
        (1, {f"-allgather-{number % 99 + 1}-1-seg-{number}/9": "00" for number in range(MOST_KEYS + 1)}),
    )  # fmt: skip
    return [
        *(
            MpiPass(guest=guest, session=session, number=1, keys=(RankKeys(rank=rank, keys=told),))
            for rank, told in keys
        ),
        *(MpiPass(guest=guest, session=session, number=number) for number in (2, 1 << 20)),
    ]  # fmt: skip


def natives(spec: GuestSpec) -> list[AnyAction]:
    """Return other programs outside of any guest, and nonsensical numbers of ranks, threads and seconds."""
    return [
        *(Native(program=program, seconds=0.1) for program in _programs(spec)),
        *(Native(program=spec.program, seconds=seconds) for seconds in (-1.0, 0.0, 601.0, 1e308)),
        *(Native(program=spec.program, seconds=0.1, cap_cores=cores) for cores in (-1.0, 1e308)),
    ]  # fmt: skip


def starts(spec: GuestSpec) -> list[AnyAction]:
    """Return nonsensical guests, caps and ends."""
    return [
        *(Start(spec=each, cap_cores=0.1) for each in _specs(spec)), Start(spec=spec, cap_cores=-1.0),
        Start(spec=spec, cap_cores=1e308), SetCaps(caps={"dfrs-a": -1.0}), SetCaps(caps={OUTSIDE: 0.1}),
        Stop(guest=OUTSIDE), Stop(guest=""),
    ]  # fmt: skip


def unseen(spec: GuestSpec) -> list[AnyAction]:
    """Return commands that an honest controller may also send, by miscalculation: they fail without an entry."""
    program = spec.program
    return [
        Native(program=msgspec.structs.replace(program, ranks=10**6), seconds=0.1),
        Native(program=msgspec.structs.replace(program, name="not-here"), seconds=0.1),
        Native(program=msgspec.structs.replace(program, units_per_iteration=0), seconds=0.1),
        Start(spec=msgspec.structs.replace(spec, memory_mib=10**6), cap_cores=0.1),
        MpiJoin(guest="dfrs-nobody", session=SESSION),
    ]
