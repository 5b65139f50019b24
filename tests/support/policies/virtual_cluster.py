"""A compact simulator on virtual time, for tests: events, yields integrated, 300 s for a resume or a move.

At one instant: completions, submissions, the periodic pass, handed to the policy as one coalesced event.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, inf, nan

import numpy as np

from testbed.scheduling.policies.capacity import offsets
from testbed.scheduling.policies.view import NOT_PLACED, ClusterView, JobState, WakingPolicy, event_at


@dataclass
class Outcome:
    """The end of each job, and the operations on it."""

    end_s: np.ndarray
    resumes: int = 0
    moves: int = 0
    decisions: int = 0


class VirtualCluster:
    """Runs jobs under a policy to their ends; calls `look` with every view, event and decision."""

    def __init__(self, jobs, nodes, policy, penalty_s=300.0, look=None):
        self.jobs, self.nodes, self.policy = jobs, nodes, policy
        self.penalty_s, self.look = penalty_s, look
        count = len(jobs)
        self.offset = offsets(np.array([job.tasks for job in jobs], dtype=np.int64))
        self.task_node = np.full(self.offset[-1], NOT_PLACED)
        self.yields, self.virtual_s = np.zeros(count), np.zeros(count)
        self.free_at_s = np.zeros(count)  # end of the job's penalty
        self.state = np.full(count, JobState.WAITING, dtype=np.int8)
        self.start_s, self.end_s = np.full(count, nan), np.full(count, nan)
        self.run_s = np.array([job.run_time_s for job in jobs])
        self.submit_s = np.array([job.submit_time_s for job in jobs])
        self.live, self.now_s, self.out = [], 0.0, Outcome(self.end_s)

    def run(self, most_events=100_000):
        """Run until every job has ended; fail if that takes too many events."""
        next_job = 0
        period = self.policy.period_s
        while self.live or next_job < len(self.jobs):
            submit_s = self.submit_s[next_job] if next_job < len(self.jobs) else inf
            tick_s = inf
            if period and self.live:
                tick_s = (self.now_s // period + 1) * period
            elif period:
                tick_s = ceil(submit_s / period) * period  # an empty cluster needs no pass
            ends = {row: self._ends_s(row) for row in self.live}
            before_s = self.now_s
            now_s = min(submit_s, tick_s, self._wakes_s(), *ends.values(), inf)
            assert now_s < inf, "the policy never runs some jobs"
            self._advance(now_s)
            done = [row for row in self.live if ends[row] <= now_s]
            for row in done:
                self.end_s[row] = now_s
                self.live.remove(row)
            new = []
            while next_job < len(self.jobs) and self.submit_s[next_job] <= now_s:
                new.append(next_job)
                next_job += 1
            self.live += new
            self._decide(done, new, before_s, periodic=now_s == tick_s)
            self.out.decisions += 1
            assert self.out.decisions < most_events
        return self.out

    def _ends_s(self, row):
        if self.yields[row] == 0:
            return inf
        left_s = (self.run_s[row] - self.virtual_s[row]) / self.yields[row]
        return max(self.now_s, self.free_at_s[row]) + max(left_s, 0.0)

    def _advance(self, now_s):
        for row in self.live:
            useful_s = now_s - max(self.now_s, self.free_at_s[row])
            self.virtual_s[row] += self.yields[row] * max(useful_s, 0.0)
        self.now_s = now_s

    def _tasks(self, row):
        return np.arange(self.offset[row], self.offset[row + 1])

    def _wakes_s(self):
        if self.live and isinstance(self.policy, WakingPolicy):
            return self.policy.next_wake_s(self._view()) or inf
        return inf

    def _view(self):
        rows = np.array(self.live, dtype=np.int64)
        jobs = [self.jobs[row] for row in rows]
        tasks = np.concatenate([np.empty(0, np.int64), *(self._tasks(row) for row in rows)])
        return ClusterView(
            time_s=self.now_s,
            node_available=np.ones(self.nodes, dtype=np.bool_),
            job_id=np.array([job.job_id for job in jobs], dtype=np.int64),
            submit_time_s=self.submit_s[rows],
            tasks=np.array([job.tasks for job in jobs], dtype=np.int64),
            cpu_need_frac=np.array([job.cpu_need_frac for job in jobs], dtype=np.float64),
            mem_req_frac=np.array([job.mem_req_frac for job in jobs], dtype=np.float64),
            virtual_time_s=self.virtual_s[rows],
            state=self.state[rows],
            task_node=self.task_node[tasks],
            start_time_s=self.start_s[rows],
            estimate_s=np.array(
                [job.batch_estimate_s if self.policy.needs_estimates else nan for job in jobs], dtype=np.float64
            ),
            urgent=np.array([job.urgent for job in jobs], dtype=np.bool_),
        )

    def _decide(self, done, new, before_s, *, periodic):
        rows, view = np.array(self.live, dtype=np.int64), self._view()
        tasks = np.concatenate([np.empty(0, np.int64), *(self._tasks(row) for row in rows)])
        ended, submitted = ([self.jobs[row].job_id for row in rows] for rows in (done, new))
        event = event_at(self.policy, view, before_s, completed=ended, submitted=submitted, periodic=periodic)
        decision = self.policy.decide(view, event)
        if self.look:
            self.look(view, event, decision)
        self.task_node[tasks] = decision.task_node
        for index, row in enumerate(rows):
            self._apply(row, np.sort(view.task_node[_span(view, index)]), decision.yield_frac[index])

    def _apply(self, row, before, yield_frac):
        was = self.state[row]
        self.yields[row] = yield_frac
        if yield_frac == 0:
            self.state[row] = JobState.PAUSED if was != JobState.WAITING else was
            return
        moved = not np.array_equal(before, np.sort(self.task_node[self._tasks(row)]))
        self.state[row] = JobState.RUNNING
        if was == JobState.WAITING:
            self.start_s[row] = self.now_s
        elif moved:
            self.free_at_s[row] = self.now_s + self.penalty_s
            self.out.resumes += was == JobState.PAUSED
            self.out.moves += was == JobState.RUNNING


def _span(view, index):
    end = int(view.tasks[: index + 1].sum())
    return slice(end - int(view.tasks[index]), end)
