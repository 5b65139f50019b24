"""The state of a served lab, which replaces the trace in a run whose jobs are submitted by users."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field

from testbed.bus.messages import NodeFacts
from testbed.control.conductor import Conductor
from testbed.control.dedicated import Shape, served_representatives
from testbed.control.intake import Intake
from testbed.control.lost_run import LostRun
from testbed.control.queue_socket import Access, taking_jobs
from testbed.control.recorder import Recorder
from testbed.lab.guests import PreparedJob
from testbed.lab.lab import addresses_of
from testbed.run import events
from testbed.scenario.schema import Scenario
from testbed.scheduling.policies.view import Policy
from testbed.scheduling.workload.jobs import Job


@dataclass(slots=True)
class Serving:
    """The jobs that users submit to a run: `users` has the user of each job, `by_job` its dedicated rate."""

    scenario: Scenario
    arrived: Sequence[events.Arrived] = ()
    by_job: MutableMapping[int, float] = field(default_factory=dict)
    users: dict[int, str] = field(init=False)
    access: Access = field(init=False)

    def __post_init__(self) -> None:
        """Look up the group of users; raises `UserError`."""
        self.access = Access.of(self.scenario.serve.access)
        self.users = {arrived.arrival.job: arrived.by for arrived in self.arrived}

    @classmethod
    def resumed(cls, scenario: Scenario, lost: LostRun) -> Serving:
        """Return the state of a served run whose controller was lost."""
        return cls(scenario, lost.arrived, dict(lost.measured.by_job) if lost.measured is not None else {})

    def representatives(self) -> dict[Shape, Job]:
        """Return a job to measure for each shape that users may submit."""
        return served_representatives(self.scenario.serve, len(self.scenario.nodes))

    def addresses(self) -> list[str]:
        """Return the guest addresses of the jobs that were submitted to earlier controllers, job after job."""
        return [address for arrived in self.arrived for address in arrived.addresses]

    @contextlib.asynccontextmanager
    async def taking(
        self, policy: Policy, conductor: Conductor, recorder: Recorder,
        prepare: Callable[[Job, Iterator[str]], PreparedJob], rates: Mapping[Shape, float], facts: NodeFacts,
    ) -> AsyncIterator[None]:  # fmt: skip
        """Take jobs from users while entered; raises `RunError` if the socket cannot be created."""
        scenario = self.scenario
        intake = Intake(
            scenario, policy, conductor, recorder, prepare, rates, self.by_job, self.users,
            lambda: addresses_of(scenario), facts.memory_mib, facts.guest_floor_mib,
        )  # fmt: skip
        async with taking_jobs(intake, scenario.lab, self.access) as path:
            recorder.say(f"jobs are taken for lab {scenario.lab} at {path}")
            yield
