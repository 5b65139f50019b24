"""How much of a run's work is done, as its journal tells."""

from __future__ import annotations

from testbed.run import events

_LEAST_FRAC = 0.05  # done before it says anything of the rest


class WorkMeter:
    """Takes events one by one; work is tasks * CPU need * dedicated run time of each job."""

    def __init__(self) -> None:
        self._work: dict[int, float] = {}
        self._run_time_s: dict[int, float] = {}
        self._done_frac: dict[int, float] = {}

    def feed(self, event: events.Known) -> None:
        """Take one event; those of other kinds change nothing."""
        match event:
            case events.Replay():
                for each in event.trace:
                    self._run_time_s[each.job] = each.run_time_s
                    self._work[each.job] = each.tasks * each.cpu_need_frac * each.run_time_s
            case events.Decision(view=view):
                for job, virtual_time_s in zip(view.job_id, view.virtual_time_s, strict=True):
                    if self._run_time_s.get(job):
                        self._done_frac[job] = min(1.0, virtual_time_s / self._run_time_s[job])
            case events.Job(state="done" | "failed"):
                self._done_frac[event.job] = 1.0

    @property
    def done_frac(self) -> float:
        """Share of all work that is done, as of the last decision; 0 for a journal that does not tell the work."""
        whole = sum(self._work.values())
        done = sum(work * self._done_frac.get(job, 0.0) for job, work in self._work.items())
        return done / whole if whole else 0.0

    def eta_s(self, elapsed_s: float) -> float | None:
        """Seconds to the end if work goes on at the mean rate of the `elapsed_s` so far; None while it is too early."""
        frac = self.done_frac
        return elapsed_s * (1 - frac) / frac if frac > _LEAST_FRAC else None
