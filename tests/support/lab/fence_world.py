"""A lab for the protocol of fences and generations: one controller, two nodes, a bus that loses, repeats and reorders.

The nodes decide with `GuestGuard`, the controller with `History`, `FenceBook` and `Clearance`, which are those of the
product; the rest is a model. The bus is worse than the product's: commands have no lease, and repeats are not filtered.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from node_agent.drivers.protocol import DriverError
from node_agent.fences import Fences
from node_agent.generations import Generations, check_image, task_of
from node_agent.guest_guard import GuestGuard, encode_generations, load_generations
from testbed.bus.messages import (
    Adopt,
    AnyAction,
    ExpectGuest,
    Fence,
    GuestSpec,
    Hold,
    ImageRef,
    Migrate,
    ProgramSpec,
    Release,
    RenewFences,
    Save,
    Start,
    Stop,
)
from testbed.bus.migration import Destination
from testbed.lab.fences import DRIFT_FRAC, Clearance, FenceBook
from testbed.run import events
from testbed.run.history import History, fold
from testbed.run.job_history import JobHistory
from testbed.run.phases import Phase

FENCE_S = 30.0
NODES = ("a", "b")
FENCED, PLAIN = 1, 2  # jobs: when its node is lost, the first one starts again, the second one fails
RATES = (1 - DRIFT_FRAC, 1.0, 1 + DRIFT_FRAC)  # of a node's clock against the controller's
_SPEC = GuestSpec(
    guest="g", run="r", job=0, task=0, cpu_cores=1.0, memory_mib=1,
    program=ProgramSpec(name="eatcpu", work_units=1, units_per_iteration=1, seed=1),
)  # fmt: skip
_TO = Destination(uri="qemu+tcp://b/system", host="b", node="b")


@dataclass
class Guest:
    """A guest that exists; a held guest makes no progress."""

    generation: int
    held: bool = False
    leaving: tuple[int, int] | None = None  # target and number of the command, while it migrates live


@dataclass
class Command:
    """A command on the bus."""

    number: int
    node: int
    action: AnyAction


@dataclass
class Reply:
    """A reply to a command, on the bus."""

    node: int
    number: int
    error: str = ""


@dataclass
class Reading:
    """A sample of a node's clock, on the bus."""

    node: int
    clock: str
    mono_ns: int


Message = Command | Reply | Reading


class Node:
    """A machine with an agent, which may be dead, and a keeper, which enforces fences from the agent's file."""

    def __init__(self, world: World, index: int) -> None:
        self.world = world
        self.index = index
        self.boots = 0
        self.mono_s = 1000.0 * (index + 1)
        self.guests: dict[str, Guest] = {}
        self.images: dict[str, int] = {}  # by image: the generation in its note
        self.alive = True
        self.disk = encode_generations(Generations())
        self.fence_file = Fences(self.clock).encode()
        self.guard = self._guard()

    @property
    def clock(self) -> str:
        return f"clock-{self.index}-{self.boots}"

    def now_ns(self) -> int:
        return int(self.mono_s * 1e9)

    def _guard(self) -> GuestGuard:
        return GuestGuard(load_generations(self.disk), Fences.load(self.fence_file, self.clock), self.now_ns)

    def _write(self) -> None:
        self.disk = encode_generations(self.guard.generations)
        self.fence_file = self.guard.fences.encode()

    def crash(self) -> None:
        """Kill the agent; its guests keep running."""
        self.alive = False

    def restart(self) -> None:
        """Start an agent, which adopts the existing guests."""
        self.alive = True
        self.guard = self._guard()

    def reboot(self) -> None:
        """Lose all guests, and the clock."""
        self.boots += 1
        self.mono_s = 1.0
        self.guests.clear()
        self.alive = True
        self.guard = self._guard()
        self._write()

    def enforce(self) -> None:
        """Destroy the guests whose fence has passed: by the agent, or by the keeper if the agent is dead."""
        fences = self.guard.fences if self.alive else Fences.load(self.fence_file, self.clock)
        for guest in fences.due(self.now_ns()):
            if self.guests.pop(guest, None) is not None:
                self.world.count["destroyed by its fence" if self.alive else "destroyed by the keeper"] += 1
            if self.alive and self.guard.gone(guest):
                self._write()

    def take(self, command: Command) -> None:
        """Carry out a command, and reply; a migration replies when the guest has arrived."""
        try:
            self.guard.admit(command.action)
            self._write()
            if self._do(command):
                self.world.bus.append(Reply(self.index, command.number))
        except DriverError as error:
            self.world.count[f"refused: {type(error).__name__}"] += 1
            self.world.bus.append(Reply(self.index, command.number, str(error) or "failed"))

    def _get(self, guest: str) -> Guest:
        if guest not in self.guests:
            raise DriverError(f"guest {guest} is not here")
        return self.guests[guest]

    def _do(self, command: Command) -> bool:
        match command.action:
            case Start() as start:
                self._start(start)
            case Adopt() as adopt:
                self._get(adopt.spec.guest).generation = adopt.spec.generation
            case Hold() as hold:
                self._get(hold.guest).held = True
            case Release() as release:
                self._get(release.guest).held = False
            case Save() as save:
                self._save(save)
            case Migrate() as migrate:
                guest = self._get(migrate.guest)
                if guest.leaving is not None or guest.held:
                    raise DriverError("it cannot migrate now")
                guest.leaving = (1 - self.index, command.number)
                return False
            case Stop() as stop:
                self.guests.pop(stop.guest, None)
                if self.guard.gone(stop.guest):
                    self._write()
        return True

    def _start(self, start: Start) -> None:
        guest = start.spec.guest
        if guest in self.guests:
            raise DriverError(f"guest {guest} is there already")
        if start.image is not None:
            if start.image.image not in self.images:
                raise DriverError("no such image")
            check_image(start.image, self.images[start.image.image])
        self.guests[guest] = Guest(start.spec.generation)
        self.world.created(guest, start.spec.generation)

    def _save(self, save: Save) -> None:
        if save.guest not in self.guests and save.image in self.images:
            return  # a repeat, as the guest was saved before: the same reply again
        if not self._get(save.guest).held:
            raise DriverError("it is not held")
        self.images[save.image] = save.generation
        del self.guests[save.guest]
        if self.guard.gone(save.guest):
            self._write()

    def arrive(self, guest: str) -> None:
        """A guest that migrates from this node arrives at the other one, independently of both agents."""
        found = self.guests.pop(guest)
        assert found.leaving is not None
        target, number = found.leaving
        found.leaving = None
        self.world.nodes[target].guests[guest] = found
        self.world.nodes[target].enforce()
        if self.alive:
            if self.guard.gone(guest):
                self._write()
            self.world.bus.append(Reply(self.index, number))


@dataclass
class Operation:
    """An operation of the controller on a job: it waits for the reply to `number`, then continues with `then`."""

    number: int
    then: Callable[[str], None]


class Controller:
    """The life of one controller; the journal outlives it."""

    def __init__(self, world: World, journal: list[events.Known]) -> None:
        self.world = world
        self.journal = journal
        self.history: History = fold(journal)
        self.book = FenceBook(FENCE_S, destroyed_within_s=0.0)
        self.lost: set[int] = set()
        self.operations: dict[int, Operation] = {}  # by job
        self.clearing: dict[int, Clearance] = {}
        self.stops: dict[int, tuple[int, Clearance | None, tuple[int, str]]] = {}  # by command
        self.actions = itertools.count(1 + sum(isinstance(event, events.Intent) for event in journal))

    def resume(self) -> None:
        """Take over from a dead controller: jobs with an operation under way are withdrawn, or fail."""
        for job in list(self.history.active.values()):
            for node, guest in self.places(job):
                self.book.inherit(node, guest, self.world.now_s)
            if job.flight is not None:
                self._end(job, "cancelled", code=events.CANCELLED)
                self.lose(job.job)
            elif job.withdrawn:
                self._clear(job)

    def record(self, kind: Callable[..., events.Known], **entry: object) -> None:
        event = kind(self.world.now_s, 0.0, **entry)
        self.journal.append(event)
        self.history.apply(event)

    def places(self, job: JobHistory) -> list[tuple[int, str]]:
        """The nodes on which a guest of the job may be, according to the journal."""
        nodes = [nodes[0] for nodes in (job.running_on, job.migrating_to) if nodes]
        return [(node, guest) for node in dict.fromkeys(nodes) for guest in job.guests]

    def fence(self, job: JobHistory, node: int, guest: str) -> Fence | None:
        return self.book.grant(node, [guest]) if job.job == FENCED else None

    def can_be_fenced(self, job: int, *nodes: int) -> bool:
        """Whether the readings of the nodes' clocks that a fence needs are known."""
        return job != FENCED or all(self.book.grant(node, []) is not None for node in nodes)

    def _send(self, node: int, action: AnyAction) -> int:
        self.world.number += 1
        command = Command(self.world.number, node, action)
        self.world.bus.append(command)
        self.world.sent.append(command)
        return self.world.number

    def _ask(self, job: JobHistory, node: int, action: AnyAction, then: Callable[[str], None]) -> None:
        self.operations[job.job] = Operation(self._send(node, action), then)

    def _spec(self, job: JobHistory) -> GuestSpec:
        return GuestSpec(
            guest=job.guests[0], run="r", job=job.job, task=0, program=_SPEC.program, cpu_cores=1.0, memory_mib=1,
            generation=job.generation,
        )  # fmt: skip

    def _intend(self, job: JobHistory, verb: str, node: int, images: tuple[str, ...] = ()) -> None:
        name = f"j{job.job}-r{job.begun}" if job.begun else f"j{job.job}"
        self.record(
            events.Intent, action=next(self.actions), verb=verb, job=job.job, nodes=(node,), yield_frac=1.0,
            guests=(name,), images=images,
        )  # fmt: skip

    def _end(self, job: JobHistory, error: str, **more: object) -> None:
        flight = job.flight
        assert flight is not None
        self.operations.pop(job.job, None)
        self.record(
            events.Outcome, action=flight.action, verb=flight.verb, job=job.job, nodes=flight.nodes, ok=not error,
            error=error or None, elapsed_s=0.0, waited_s=0.0, bytes=0, **more,
        )  # fmt: skip

    def free(self, job: int, *phases: Phase) -> bool:
        """Whether an operation on the job may begin."""
        state = self.history.jobs[job]
        return state.phase in phases and state.flight is None and not state.withdrawn and job not in self.operations

    # --- operations

    def start(self, job_id: int, node: int) -> None:
        """Start a waiting job, or restore a saved one."""
        job = self.history.jobs[job_id]
        image = next((ref for ref in job.images), None) if job.phase is Phase.SAVED else None
        if image is not None:
            self.world.transfer(image.name, node)
        self._intend(job, "start" if image is None else "restore", node, () if image is None else (image.name,))
        self._create(job, node, image)

    def _create(self, job: JobHistory, node: int, image: events.Image | None) -> None:
        spec = self._spec(job)
        ref = None
        if image is not None:
            ref = ImageRef(image=image.name, bytes=1, digest="d", generation=self.world.saved[image.name])
        order = Start(spec=spec, cap_cores=1.0, image=ref, fence=self.fence(job, node, spec.guest))

        def then(error: str) -> None:
            if not error:
                self._end(job, "")
                return
            self.world.count["a start is tried again"] += 1
            self.stop(node, spec.guest, job.generation)
            flight = job.flight
            assert flight is not None
            self.record(events.Retry, action=flight.action, job=job.job, attempt=1, error=error)
            self._create(job, node, image)

        self._ask(job, node, order, then)

    def save(self, job_id: int) -> None:
        """Hold and save a running job."""
        job = self.history.jobs[job_id]
        assert job.running_on is not None
        (node,), (guest,) = job.running_on, job.guests
        self.world.number += 1
        name = f"{guest}-{self.world.number}.img"
        self.world.saved[name] = job.generation
        self._intend(job, "save", node, (name,))

        def saved(error: str) -> None:
            if error:
                self.lose(job_id)
            else:
                self._end(job, "", reason="preemption", images=(events.Image(name=name, bytes=1, digest="d"),))

        def held(error: str) -> None:
            if error:
                self.lose(job_id)
            else:
                self._ask(job, node, Save(guest=guest, image=name, generation=job.generation), saved)

        self._ask(job, node, Hold(guest=guest, image=name, generation=job.generation), held)

    def migrate(self, job_id: int) -> None:
        """Migrate a running job to the other node while it works."""
        job = self.history.jobs[job_id]
        assert job.running_on is not None
        (source,), (guest,) = job.running_on, job.guests
        target = 1 - source
        self._intend(job, "migrate", target)

        def adopted(error: str) -> None:
            if error:
                self.lose(job_id)
                return
            self.record(events.Migration, job=job_id, task=0, source=source, target=target)
            self._end(job, "")

        def left(error: str) -> None:
            if error:
                self.lose(job_id)
                return
            fence = self.fence(job, target, guest)
            self._ask(job, target, Adopt(spec=self._spec(job), cap_cores=1.0, fence=fence), adopted)

        def expected(error: str) -> None:
            if error:
                self._end(job, error, code=events.STAYS)
                return
            order = Migrate(guest=guest, to=_TO, budget_s=1.0, no_progress_s=1.0, generation=job.generation)
            self._ask(job, source, order, left)

        fence = self.fence(job, target, guest)
        if fence is None:
            expected("")
        else:
            self._ask(job, target, ExpectGuest(guest=guest, generation=job.generation, fence=fence), expected)

    def stop(self, node: int, guest: str, generation: int, clearance: Clearance | None = None, job: int = 0) -> None:
        """Send a Stop."""
        number = self._send(node, Stop(guest=guest, generation=generation))
        self.stops[number] = (job, clearance, (node, guest))

    def renew(self, node: int) -> None:
        """Renew the fences of the guests that should be on a node."""
        if node in self.lost:
            return
        guests = tuple(
            guest
            for job in self.history.active.values()
            if job.job == FENCED and not job.withdrawn
            for where, guest in self.places(job)
            if where == node
        )
        fence = self.book.grant(node, guests) if guests else None
        if fence is not None:
            self._send(node, RenewFences(fence=fence, guests=guests))

    # --- losses

    def lose_node(self, node: int) -> None:
        """Declare a node lost, rightly or wrongly."""
        self.lost.add(node)
        for job in list(self.history.active.values()):
            if not job.withdrawn and any(where == node for where, _ in self.places(job)):
                self.lose(job.job)

    def lose(self, job_id: int) -> None:
        """The guests of a job are lost, or their state is unknown."""
        job = self.history.jobs[job_id]
        self.operations.pop(job_id, None)
        if job_id != FENCED:
            if job.flight is not None:
                self._end(job, "cancelled", code=events.CANCELLED)
            self.record(events.Job, job=job_id, state="failed", code="node-lost")
            for node, guest in self.places(job):
                self.stop(node, guest, job.generation)
            return
        self.record(events.Job, job=job_id, state="withdrawn", detail="lost")
        if job.flight is not None:
            self._end(job, "cancelled", code=events.CANCELLED)
        self._clear(job)

    def _clear(self, job: JobHistory) -> None:
        here = [(node, guest) for node in job.running_on or () for guest in job.guests]
        there = [(node, guest) for node in job.migrating_to or () for guest in job.guests]
        self.clearing[job.job] = Clearance(self.book, here, there)
        self.stop_again(job.job)

    def stop_again(self, job_id: int) -> None:
        """Send Stops to the remaining places of a withdrawn job."""
        job, clearance = self.history.jobs[job_id], self.clearing[job_id]
        for node, guest in clearance.left(self.world.now_s):
            self.stop(node, guest, job.generation, clearance, job_id)

    def settle(self) -> None:
        """Release withdrawn jobs whose guests have certainly ended, so that they run again."""
        for job_id, clearance in list(self.clearing.items()):
            if clearance.left(self.world.now_s):
                continue
            del self.clearing[job_id]
            job = self.history.jobs[job_id]
            if job.running_on is not None:
                self.record(events.Cleared, job=job_id)
            names = [image.name for image in job.images]
            where = [node.index for node in self.world.nodes if names and names[0] in node.images]
            self.record(events.Job, job=job_id, state="again", images_on=tuple(where[:1]))
            self.world.count["began again"] += 1

    def hear(self, message: Reply | Reading) -> None:
        """Process a message."""
        if isinstance(message, Reading):
            self.book.hear(message.node, message.clock, message.mono_ns, self.world.now_s)
            return
        if message.number in self.stops:
            job, clearance, place = self.stops.pop(message.number)
            if clearance is not None and not message.error and self.clearing.get(job) is clearance:
                clearance.stopped([place])
                self.stop_again(job)
            return
        for operation in list(self.operations.values()):
            if operation.number == message.number:
                operation.then(message.error)


@dataclass
class World:
    """The whole lab; `count` counts events."""

    now_s: float = 0.0
    number: int = 0
    bus: list[Message] = field(default_factory=list)
    sent: list[Command] = field(default_factory=list)  # all commands ever: the bus may deliver each of them again
    count: Counter[str] = field(default_factory=Counter)
    saved: dict[str, int] = field(default_factory=dict)  # generation of each image, as the journal has it
    newest: Counter[str] = field(default_factory=Counter)  # the newest generation that was created, by task

    def __post_init__(self) -> None:
        self.nodes = [Node(self, index) for index in range(len(NODES))]
        trace = tuple(
            events.TraceJob(job=job, submit_time_s=0.0, tasks=1, cpu_need_frac=1.0, mem_req_frac=0.1, run_time_s=1.0)
            for job in (FENCED, PLAIN)
        )
        journal: list[events.Known] = [
            events.Begin(0.0, 0.0, scenario="s", policy="p", run_tag="r", version=events.VERSION),
            events.Replay(0.0, 0.0, jobs=2, trace=trace, nodes=NODES),
            *(events.Job(0.0, 0.0, job=job, state="submitted") for job in (FENCED, PLAIN)),
        ]
        self.journal = journal
        self.controller: Controller | None = Controller(self, journal)

    def transfer(self, image: str, node: int) -> None:
        """Copy an image to a node from the other one, if that has it."""
        for other in self.nodes:
            if image in other.images:
                self.nodes[node].images[image] = other.images[image]

    def created(self, guest: str, generation: int) -> None:
        """A guest was created."""
        self.newest[task_of(guest)] = max(self.newest[task_of(guest)], generation)

    def advance(self, seconds: float, rates: tuple[float, ...]) -> None:
        """Let time pass, with each node's clock at its rate; fences may pass in it."""
        self.now_s += seconds
        for node, rate in zip(self.nodes, rates, strict=True):
            node.mono_s += seconds * rate
            node.enforce()

    def sample(self, node: int) -> None:
        """An agent publishes a reading of its clock."""
        if self.nodes[node].alive:
            self.bus.append(Reading(node, self.nodes[node].clock, self.nodes[node].now_ns()))

    def deliver(self, index: int, *, again: bool = False) -> None:
        """Deliver a message, independently of earlier ones; with `again` it stays on the bus, for a repeat."""
        message = self.bus[index] if again else self.bus.pop(index)
        if isinstance(message, Command):
            node = self.nodes[message.node]
            if node.alive:
                node.take(message)
            elif not again:
                self.bus.append(message)  # it waits for the agent
        elif self.controller is not None:
            self.controller.hear(message)

    def check(self) -> None:
        """Raise `AssertionError` if a task runs twice, or an old life of it makes progress."""
        for task in ("j1", "j2"):
            here = [
                (node.index, guest, found.generation)
                for node in self.nodes
                for guest, found in node.guests.items()
                if task_of(guest) == task and not found.held
            ]
            assert len(here) <= 1, f"{task} runs twice: {here}"
            assert all(generation >= self._oldest(task) for _, _, generation in here), f"an old life goes on: {here}"

    def _oldest(self, task: str) -> int:
        return self.newest[task]
