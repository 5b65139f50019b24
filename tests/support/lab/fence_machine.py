"""A state machine that tests the protocol of fences and generations with starts, moves, losses and faults."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

from hypothesis import event
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from support.lab.fence_world import FENCE_S, FENCED, NODES, PLAIN, RATES, Command, Controller, Message, Reply, World
from testbed.bus.messages import RenewFences, Start
from testbed.lab.fences import DRIFT_FRAC
from testbed.run.phases import Phase

TOTALS: Counter[str] = Counter()
_MOST_MESSAGES = 40
_STEP_S = FENCE_S / 4
_QUIET_S = 2 * FENCE_S / (1 - DRIFT_FRAC)  # without further faults, a job has started again by then
_RESULT = "DFRS_PROTOCOL_RESULT"

nodes = st.integers(0, len(NODES) - 1)
jobs = st.sampled_from([FENCED, FENCED, PLAIN])
seconds = st.sampled_from([1.0, _STEP_S, FENCE_S - 5.0, FENCE_S, FENCE_S / (1 - DRIFT_FRAC)])
rates = st.tuples(*(st.sampled_from(RATES) for _ in NODES))


class FenceMachine(RuleBasedStateMachine):
    """Each rule is something that a controller, an agent, the bus, a machine or time may do at any moment."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.away: set[int] = set()  # nodes that are cut off the bus
        for node in range(len(NODES)):
            self.world.sample(node)
            self.world.deliver(0)

    def did(self, what: str) -> None:
        self.world.count[what] += 1

    @property
    def controller(self) -> Controller:
        assert self.world.controller is not None
        return self.world.controller

    def alive(self) -> bool:
        return self.world.controller is not None

    def room(self) -> bool:
        return self.alive() and len(self.world.bus) < _MOST_MESSAGES

    @initialize(node=nodes)
    def first_start(self, node: int) -> None:
        for job in (FENCED, PLAIN):
            self._operate(job, "create", node)
        self.deliver_all()

    # --- the controller

    @precondition(room)
    @rule(job=jobs, verb=st.sampled_from(["create", "create", "save", "migrate"]), node=nodes, at_once=st.booleans())
    def operate(self, job: int, verb: str, node: int, at_once: bool) -> None:
        self._operate(job, verb, node)
        if at_once:
            self.deliver_all()

    def _operate(self, job: int, verb: str, node: int) -> None:
        controller = self.controller
        phase = controller.history.jobs[job].phase
        if verb == "create" and controller.free(job, Phase.WAITING, Phase.SAVED) and node not in controller.lost:
            if controller.can_be_fenced(job, node):
                self.did("restore" if phase is Phase.SAVED else "start")
                controller.start(job, node)
        elif verb == "save" and controller.free(job, Phase.RUNNING):
            self.did(verb)
            controller.save(job)
        elif verb == "migrate" and controller.free(job, Phase.RUNNING) and controller.can_be_fenced(job, 0, 1):
            self.did(verb)
            controller.migrate(job)

    @precondition(room)
    @rule(node=nodes)
    def renew(self, node: int) -> None:
        """A reading of the clock arrives, and the fences are renewed."""
        self._renew(node)

    def _renew(self, node: int) -> None:
        self._read_clock(node)
        self.did("renew")
        self.controller.renew(node)

    def _read_clock(self, node: int) -> None:
        if self.world.nodes[node].alive:
            self.world.sample(node)
            self.world.deliver(len(self.world.bus) - 1)

    @precondition(alive)
    @rule(node=nodes, cut=st.booleans(), renewed=st.sampled_from(["no", "yes", "late"]), wait=seconds, rates=rates)
    def lose_node(self, node: int, cut: bool, renewed: str, wait: float, rates: tuple[float, ...]) -> None:
        """A node is declared lost, rightly or wrongly, maybe with a renewal on its way that arrives much later."""
        if node in self.controller.lost:
            return
        if renewed != "no":
            self._renew(node)
        last = self.world.sent[-1] if self.world.sent else None
        if cut:
            self.away.add(node)
        self.did("node is declared lost")
        self.controller.lose_node(node)
        on_its_way = last is not None and last.node == node and isinstance(last.action, RenewFences)
        if renewed == "late" and on_its_way and self.world.nodes[node].alive:
            self.did("late renewal")
            self.world.advance(wait, rates)
            self.world.nodes[node].take(last)

    @precondition(lambda self: self.alive() and self.controller.lost)
    @rule()
    def return_node(self) -> None:
        self.did("node returns")
        self.controller.lost.clear()
        for job in list(self.controller.clearing):
            self.controller.stop_again(job)

    @precondition(lambda self: self.alive() and self.controller.clearing)
    @rule(node=nodes, polls=st.sampled_from([1, 5, 40]), rates=rates)
    def settle(self, node: int, polls: int, rates: tuple[float, ...]) -> None:
        """Wait, and let a withdrawn job run again as soon as it may."""
        for _ in range(polls):
            self.controller.settle()
            if not self.controller.clearing:
                break
            self.world.advance(1.0, rates)
        self._read_clock(node)
        self._operate(FENCED, "create", node)
        self.deliver_all()

    @precondition(lambda self: self.alive() and self.controller.operations)
    @rule(lost=st.booleans())
    def give_up(self, lost: bool) -> None:
        """The deadline of a command expires, because the command was lost or is late."""
        self.did("deadline")
        if lost:
            self.world.bus = [message for message in self.world.bus if not isinstance(message, Command)]
        self.controller.lose(next(iter(self.controller.operations)))

    @precondition(lambda self: self.world.controller is None)
    @rule()
    def resume(self) -> None:
        self.did("controller resumes")
        self.world.controller = Controller(self.world, self.world.journal)
        for node in range(len(NODES)):
            if node not in self.away:
                self._read_clock(node)
        self.world.controller.resume()

    # --- machines

    @rule(fault=st.sampled_from(["controller", "agent", "agent", "reboot"]), node=nodes)
    def fault(self, fault: str, node: int) -> None:
        found = self.world.nodes[node]
        if fault == "controller" and self.alive():
            self.did("controller crashes")
            self.world.controller = None
        elif fault == "agent" and found.alive:
            self.did("agent crashes")
            found.crash()
        elif fault == "reboot":
            self.did("node reboots")
            found.reboot()

    @precondition(lambda self: not all(node.alive for node in self.world.nodes))
    @rule()
    def restart_agents(self) -> None:
        for node in self.world.nodes:
            if not node.alive:
                self.did("agent restarts")
                node.restart()

    @precondition(lambda self: any(found.leaving for node in self.world.nodes for found in node.guests.values()))
    @rule()
    def arrive(self) -> None:
        self._arrive()

    def _arrive(self) -> None:
        for node in self.world.nodes:
            for guest, found in list(node.guests.items()):
                if found.leaving is not None:
                    self.did("guest arrives")
                    node.arrive(guest)

    # --- the bus

    @precondition(lambda self: self.world.bus)
    @rule(arrive=st.booleans())
    def deliver_everything(self, arrive: bool) -> None:
        self.deliver_all()
        if arrive:
            self._arrive()
            self.deliver_all()

    def deliver_all(self) -> None:
        """Deliver the messages that can be delivered now, in order, and their replies."""
        for _ in range(_MOST_MESSAGES):
            waiting = [message for message in self.world.bus if self._can_pass(message)]
            if not waiting:
                break
            self.world.deliver(self.world.bus.index(waiting[0]))

    def _can_pass(self, message: Message) -> bool:
        if message.node in self.away:
            return False
        return not isinstance(message, Command) or self.world.nodes[message.node].alive

    @precondition(lambda self: self.world.bus)
    @rule(data=st.data(), lost=st.booleans())
    def disorder(self, data: st.DataObject, lost: bool) -> None:
        index = data.draw(st.integers(0, len(self.world.bus) - 1))
        if lost:
            self.did("lose a message")
            self.world.bus.pop(index)
        else:
            self.did("reorder" if index else "deliver")
            self.world.deliver(index)

    @precondition(lambda self: self.world.sent)
    @rule(back=st.sampled_from([0, 1, 1, 2, 3, 4, 6, 9]), starts=st.booleans())
    def repeat(self, back: int, starts: bool) -> None:
        """The bus delivers an earlier command, maybe for the first time."""
        sent = [command for command in self.world.sent if isinstance(command.action, Start) or not starts]
        command = sent[max(0, len(sent) - 1 - back)]
        if self.world.nodes[command.node].alive:
            self.did("repeat or delay")
            self.world.nodes[command.node].take(command)

    @rule(node=nodes)
    def cut(self, node: int) -> None:
        """Cut a node off the bus, or connect it again."""
        if node in self.away:
            self.did("node is connected again")
            self.away.discard(node)
        else:
            self.did("node is cut off")
            self.away.add(node)

    # --- time

    @rule(seconds=seconds, rates=rates)
    def advance(self, seconds: float, rates: tuple[float, ...]) -> None:
        self.world.advance(seconds, rates)

    # --- invariants

    @invariant()
    def no_task_runs_twice(self) -> None:
        self.world.check()

    def teardown(self) -> None:
        """Assert that a withdrawn job runs again within bounded time without further faults; then add to the counts."""
        world = self.world
        if world.controller is None:
            self.resume()
        world.bus.clear()
        self.away.clear()
        withdrawn = bool(self.controller.clearing)
        world.advance(_QUIET_S, (RATES[0],) * len(NODES))
        self.controller.settle()
        world.check()
        assert not self.controller.clearing, "a withdrawn job waits for ever"
        self._run_again()
        if withdrawn:
            world.count["began again after a quiet time"] += 1
        for what in world.count:
            event(what)
        TOTALS.update(world.count)
        TOTALS["examples"] += 1
        if path := os.environ.get(_RESULT):
            Path(path).write_text(json.dumps(dict(sorted(TOTALS.items())), indent=2) + "\n", encoding="utf-8")

    def _run_again(self) -> None:
        """Start the fenced job on a working node, unless it runs."""
        world, controller = self.world, self.controller
        for node in world.nodes:
            if not node.alive:
                node.restart()
            world.sample(node.index)
        while world.bus:
            world.deliver(0)
        if controller.free(FENCED, Phase.WAITING, Phase.SAVED):
            controller.start(FENCED, 1)
            for _ in range(4):  # attempts, because the node may know of earlier lives
                for message in list(world.bus):
                    if isinstance(message, Command | Reply):
                        world.deliver(world.bus.index(message))
            world.check()
            assert controller.history.jobs[FENCED].phase is Phase.RUNNING, "a withdrawn job does not start"
