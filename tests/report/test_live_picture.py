from __future__ import annotations

from io import StringIO

from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from testbed.control.snapshot import GuestPicture, NodePicture, OperationPicture, Snapshot
from testbed.study.report.terminal.live import LiveDisplay, PlainDisplay, display_for
from testbed.study.report.terminal.picture import draw

GUESTS = st.builds(
    GuestPicture,
    job=st.integers(1, 99999),
    task=st.integers(0, 40),
    phase=st.sampled_from(["running", "saving", "restoring"]),
    cap_cores=st.floats(0, 1),
    used_cores=st.floats(0, 2),
    share_cores=st.none() | st.floats(0, 1),
)
NODES = st.builds(
    NodePicture,
    name=st.text("nod-e0123456789", min_size=1, max_size=12),
    online=st.booleans(),
    cpus=st.sampled_from([0.0, 0.5, 1.0, 16.0]),
    memory_mib=st.integers(0, 10**6),
    memory_held_mib=st.integers(0, 10**6),
    guests=st.lists(GUESTS, max_size=6).map(tuple),
    slot=st.sampled_from(["", "lent", "changing"]),
)
OPERATIONS = st.builds(
    OperationPicture,
    verb=st.sampled_from(["start", "save", "restore", "migrate"]),
    job=st.integers(1, 999),
    nodes=st.lists(st.sampled_from(["node-a", "node-b"]), max_size=2).map(tuple),
    elapsed_s=st.floats(0, 1e4),
)


def snapshot(**changes: object) -> Snapshot:
    values: dict[str, object] = {
        "trace_s": 2050.0, "wall_s": 41.0, "eta_s": 44.0, "work_frac": 0.48, "coming": 3, "waiting": 1, "running": 4,
        "paused": 2, "done": 5, "failed": 0, "queue": (78, 79, 80), "operations": (), "pending": 2, "reschedulings": 3,
        "penalty_s": 2.31, "penalty_max_s": 1.2, "nodes": (), **changes,
    }  # fmt: skip
    return Snapshot(**values)


def lines_of(picture: Snapshot | None, events: tuple[str, ...], width: int, height: int) -> list[str]:
    out = StringIO()
    console = Console(file=out, width=width, height=height, color_system=None)
    console.print(draw("a run under a policy", picture, events, width, height))
    return out.getvalue().rstrip("\n").split("\n")


@settings(deadline=None, max_examples=60)
@given(
    st.lists(NODES, max_size=40),
    st.lists(OPERATIONS, max_size=12),
    st.lists(st.text(max_size=200).filter(str.isprintable), max_size=30),
    st.integers(30, 200),
    st.integers(12, 60),
)
def test_picture_never_outgrows_the_terminal(nodes, operations, events, width, height):
    banks = {guest.job: 0.1 for node in nodes for guest in node.guests if guest.share_cores is not None}
    picture = snapshot(nodes=tuple(nodes), operations=tuple(operations), bank_cores=banks)
    lines = lines_of(picture, tuple(events), width, height)
    assert len(lines) <= height
    assert all(cell_len(line) <= width for line in lines)


def test_picture_tells_what_matters():
    nodes = (
        NodePicture(
            "node-a", True, 1.0, 640, 400,
            (GuestPicture(71, 0, "running", 0.5, 0.25), GuestPicture(75, 1, "saving", 0.25, 0.0)),
        ),
        NodePicture("node-b", False, 1.0, 640, 0, ()),
    )  # fmt: skip
    operations = (OperationPicture("restore", 82, ("node-a",), 2.34),)
    text = lines_of(snapshot(nodes=nodes, operations=operations, failed=1), ("job 75 paused",), 140, 30)
    whole = "\n".join(text)
    for told in (
        "trace 00:34:10", "48% of the work", "ETA 00:00:44", "3 to come", "1 failed", "queue 78 79 80",
        "3, total 2.3 s, mean 0.77 s, max 1.20 s", "0.25/1 cores", "400/640 MiB", "71.0 0.25/0.50",
        "75.1 0.00/0.25 saving", "1 in progress, 2 planned", "2.3 s", "job 75 paused",
    ):  # fmt: skip
        assert told in whole
    bar = next(line for line in text if line.startswith("node-a")).split()[1]
    # 40 cells per node: job 71 may use 20 of them, uses 10, and its number covers 2; job 75 may use 10 and is idle
    assert bar == "71" + "█" * 8 + "░" * 10 + "75" + "░" * 8 + "·" * 10
    assert "lost" in next(line for line in text if line.startswith("node-b"))


def test_guests_that_compete_by_shares_show_their_share_and_what_the_bank_has():
    guests = (
        GuestPicture(3, 0, "running", 0.5, 0.25, share_cores=0.5),
        GuestPicture(5, 1, "running", 0.3, 0.004, share_cores=0.0125),
    )
    node = NodePicture("node-a", True, 1.0, 640, 400, guests)
    picture = snapshot(nodes=(node,), bank_cores={job: job / 100 for job in range(5, 13)})
    text = lines_of(picture, ("one",), 160, 30)
    whole = "\n".join(text)
    for told in (
        "cores used/share", "░ share", "3.0 0.250/0.500  5.1 0.004/0.013",
        "banks have  job 5 0.050 cores, job 6 0.060 cores", "job 10 0.100 cores, and 2 more",
    ):  # fmt: skip
        assert told in whole
    out = StringIO()
    with display_for(Console(file=out, width=300), "title") as plain:
        plain.show(picture)
        plain.show(snapshot(wall_s=90.0))
    with_banks, without = out.getvalue().splitlines()
    assert "2 planned; banks have: job 5 0.050 cores, " in with_banks
    assert without.endswith("2 planned")


def test_without_shares_nothing_of_them_is_shown():
    node = NodePicture("node-a", True, 1.0, 640, 400, (GuestPicture(3, 0, "running", 0.5, 0.25),))
    whole = "\n".join(lines_of(snapshot(nodes=(node,)), ("one",), 160, 30))
    assert "share" not in whole
    assert "bank" not in whole
    assert "cores used/allowed" in whole


def test_a_node_with_more_allowed_than_it_has_shows_every_job():
    guests = (GuestPicture(74, 0, "starting", 0.8, 0.0), GuestPicture(75, 0, "starting", 0.4, 0.0))
    node = NodePicture("node-a", True, 0.8, 1536, 1500, guests)
    (line,) = [line for line in lines_of(snapshot(nodes=(node,)), (), 140, 30) if line.startswith("node-a")]
    assert line.split()[1] == "74" + "░" * 25 + "75" + "░" * 11


def test_nodes_that_do_not_fit_are_counted():
    guest = (GuestPicture(1, 0, "running", 1.0, 1.0),)
    nodes = tuple(NodePicture(f"n{i:03}", i != 150, 1.0, 640, 0, guest if i % 2 else ()) for i in range(200))
    lines = lines_of(snapshot(nodes=nodes), ("one", "two", "three", "four"), 100, 24)
    shown = sum(line.startswith("n") and line[1:4].isdigit() for line in lines)
    (rest,) = [line for line in lines if line.startswith("and ")]
    assert rest == f"and {200 - shown} more nodes: {sum(i % 2 for i in range(shown, 200))} busy, 1 lost"
    assert lines[-3:] == ["two", "three", "four"]


def test_before_the_first_picture_only_events_are_there():
    assert "waiting for nodes" in "\n".join(lines_of(None, ("waiting for nodes",), 60, 12))


def test_a_terminal_gets_a_picture_and_anything_else_lines():
    out = StringIO()
    plain = display_for(Console(file=out, width=100), "title")
    assert isinstance(plain, PlainDisplay)
    with plain:
        plain.line(61.0, "job 1 [started]")
        plain.show(snapshot())
        plain.show(snapshot(wall_s=42.0))  # too early for another
    assert out.getvalue().splitlines()[0] == "[00:01:01] job 1 [started]"
    assert len(out.getvalue().splitlines()) == 2
    terminal = StringIO()
    display = display_for(Console(file=terminal, force_terminal=True, width=100, height=30), "title")
    assert isinstance(display, LiveDisplay)
    with display:
        display.line(61.0, "job 1 started")
        display.show(snapshot())
    assert "job 1 started" in terminal.getvalue()
    assert "48% of the work" in terminal.getvalue()
