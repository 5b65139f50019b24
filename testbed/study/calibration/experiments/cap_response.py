"""The response time of caps: from the command that sets a cap until the guest's CPU use equals the cap."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from testbed.bus.messages import CapChange
from testbed.errors import RunError
from testbed.lab.lab import Lab
from testbed.study.calibration.experiment import Experiment, LabFacts
from testbed.study.calibration.quantities import Quantities, by_condition, column
from testbed.study.calibration.sizes import down, guest_mib, usable_cores, vcpu_counts, why_no_caps
from testbed.study.calibration.trials import Outcome
from testbed.study.calibration.values import Condition, Observation
from testbed.study.calibration.watched import response_s
from testbed.study.report.calibration.data import (
    Measured,
    Row,
    Series,
    count_words,
    groups,
    having,
    interval_words,
    percent,
    values_of,
)
from testbed.study.report.calibration.panels import strip_chart
from testbed.study.report.page.style import Absent, Chart

_EVERY_S = 0.01
_SETTLE_S = 0.5
_HOLDS_S = 1.13  # duration of the new cap; no multiple of a cap's period of 100 ms, so that changes hit all its phases
_BACK_S = 0.61
_CHANGES = 3
_ITERATION_S = 0.1
_PAIRS = ((0.1, 0.6), (0.6, 0.1))  # well below a whole core, which a busy machine may not have


class CapResponse(Experiment):
    """One guest whose cap is changed from one value to another and back, three times."""

    name = "cap-response"
    about = "time from the command that changes a cap until the guest's CPU use equals the new cap"
    section = "CPU caps"
    order = 100

    def why_not(self, lab: LabFacts) -> str:
        """See `Experiment.why_not`."""
        return why_no_caps(lab)

    def conditions(self, lab: LabFacts, *, quick: bool) -> list[Observation]:
        """Return a raise and a cut, as fractions of the guest's virtual CPUs, limited to the node's usable cores."""
        room = usable_cores(lab)
        found: list[Observation] = []
        for vcpus in vcpu_counts(lab)[: 1 if quick else None]:
            most = down(room / vcpus)
            found += [
                {"from_frac": min(begin, most), "to_frac": min(end, most), "vcpus": vcpus}
                for begin, end in _PAIRS
                if min(begin, end) < most
            ]
        return found

    def expected_s(self, condition: Condition, lab: LabFacts) -> float:  # noqa: ARG002  # all take the same time
        """See `Experiment.expected_s`."""
        return (6.0 if lab.able("whole") else 1.0) + _watch_s()

    async def trial(self, lab: Lab, condition: Condition) -> list[Observation]:
        """Return one observation per change of the cap that the guest followed; raises `RunError` if it followed none.

        `command_s` is from the begin of the command to its end, by the node's agent. `response_s` is from the same
        begin, as `calibration.watched.response_s` defines it. `changes` is the number of changes in the trial, so that
        the changes without a response can be counted. `read_back_cores` is the new cap that the node read back.
        """
        facts = LabFacts(lab.scenario, lab.facts)
        vcpus = int(condition["vcpus"])
        from_cores, to_cores = (float(condition[key]) * vcpus for key in ("from_frac", "to_frac"))
        cpu_cores = min(float(vcpus), usable_cores(facts))
        async with lab.job(
            memory_mib=guest_mib(facts), cpu_cores=cpu_cores, program="eatcpu", iteration_s=_ITERATION_S
        ) as job:
            guest = job.guests[0]
            await job.start()
            await job.cap(from_cores / cpu_cores)
            cycle_s = _HOLDS_S + _BACK_S
            caps = [
                CapChange(after_s=_SETTLE_S + cycle * cycle_s + later_s, caps={guest: cores})
                for cycle in range(_CHANGES)
                for later_s, cores in ((0.0, to_cores), (_HOLDS_S, from_cores))
            ]
            watched = await lab.watch(job.nodes[0], job.guests, _EVERY_S, _watch_s(), caps)
        changes = [*watched.cap_changes]
        found: list[Observation] = []
        for forth, back in zip(changes[::2], changes[1::2], strict=True):
            response = response_s(watched.t_s, watched.cpu_s[guest], forth.begin_s, to_cores, until_s=back.begin_s)
            if response is not None:
                found.append(
                    {
                        "command_s": forth.end_s - forth.begin_s,
                        "response_s": response,
                        "read_back_cores": forth.caps[guest],
                        "changes": _CHANGES,
                    }
                )
        if not found:
            raise RunError(
                f"guest {guest}: its CPU use followed none of {_CHANGES} changes: expected {to_cores:g} cores, the new "
                f"cap, within {_HOLDS_S:g} s"
            )
        return found

    def quantities(self, trials: Sequence[Outcome]) -> Quantities:
        """Return the response time by the change, and the duration of the command."""
        found = Quantities(trials)
        for condition, some in by_condition(trials, "from_frac", "to_frac", "vcpus"):
            found.median("cap_response_s", "s", column(some, "response_s"), condition)
        found.median("cap_command_s", "s", column(trials, "command_s"), {}, listed=False)
        return found

    def figures(self, measured: Measured) -> Sequence[Chart | Absent]:
        """Return a strip chart of the response time of a new cap, by the change."""
        name, title = "calibration_response", "Response time of a cap change"
        rows = measured.rows("response_s")
        if not rows:
            return [measured.absent(name, title)]
        several = len({row.at("vcpus") for row in rows}) > 1
        series = [
            Series(
                f"{percent(a)} → {percent(b)}" + (f", {vcpus} vCPU{'' if vcpus == 1 else 's'}" if several else ""),
                own, "response_s", factor=1e3,
            )
            for (a, b, vcpus), own in groups(rows, "from_frac", "to_frac", "vcpus").items()
        ]  # fmt: skip
        commands = Series("", having(rows, "command_s"), "command_s", factor=1e3)
        command = f" The command itself takes {interval_words(commands.middle, 'ms')}." if commands.rows else ""
        caption = (
            "Milliseconds from the command until the CPU use equals the new cap; caps in % of the guest's CPUs. One "
            "dot per change, with the median and its 95 % interval over trials; the resolution is one sample of the "
            "watch."
            f"{command} {count_words(rows)}.{_lost(rows)}"
        )
        alt = f"Responses to a new cap: median {1e3 * float(np.median(values_of(rows, 'response_s'))):.3g} ms"
        x_label = "from the command to the change in use (ms)"
        return [strip_chart(name, title, caption, alt, series, x_label, height_in=3.2)]


def _watch_s() -> float:
    return _SETTLE_S + _CHANGES * (_HOLDS_S + _BACK_S)


def _lost(rows: list[Row]) -> str:
    """Return a sentence on the number of changes without a response, because the others do not represent these."""
    changes = {row.trial: row.number("changes") for row in rows}
    done = sum(int(count) for count in changes.values() if count is not None)
    lost = done - len(rows)
    return f" {lost} of {done} changes had no response within their time." if done and lost > 0 else ""
