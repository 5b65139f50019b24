"""Jobs of a synthetic site, their accounting as text, and the jobs of a trace that conversion should produce."""

from __future__ import annotations

from calendar import day_abbr, month_abbr
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import pytest
from hypothesis import strategies as st

from testbed.errors import UserError
from testbed.scheduling.workload.jobs import Job
from testbed.scheduling.workload.table import format_table, parse_table

CORES_PER_NODE = 16
NODE_BYTES = 64 * 10**9
_MIB = 2**20


# A day of a small cluster: version 23, with the steps of the jobs.
SACCT_SAMPLE = """\
JobIDRaw|JobID|User|State|Submit|Eligible|Start|End|ElapsedRaw|AllocCPUS|NNodes|ReqMem|MaxRSS|NTasks|TimelimitRaw|Partition
4001|4001|ada|COMPLETED|2026-01-31T12:00:00|2026-01-31T12:00:00|2026-01-31T12:00:05|2026-01-31T13:00:05|3600|32|2|32G|||120|batch
4001.batch|4001.batch||COMPLETED|2026-01-31T12:00:05|2026-01-31T12:00:05|2026-01-31T12:00:05|2026-01-31T13:00:05|3600|16|1||9012K|1||
4001.extern|4001.extern||COMPLETED|2026-01-31T12:00:05|2026-01-31T12:00:05|2026-01-31T12:00:05|2026-01-31T13:00:05|3600|32|2||0|2||
4001.0|4001.0||COMPLETED|2026-01-31T12:00:07|2026-01-31T12:00:07|2026-01-31T12:00:07|2026-01-31T13:00:04|3597|32|2||2G|32||
4002|4002|bob|CANCELLED by 1001|2026-01-31T12:01:00|2026-01-31T12:01:00|None|2026-01-31T12:02:00|0|0|1|4G|||60|batch
4003|4003_1|bob|TIMEOUT|2026-01-31T11:59:30|2026-01-31T11:59:30|2026-01-31T12:00:00|2026-01-31T12:10:12|612|1|1|4000M|||10|short
4003.batch|4003_1.batch||CANCELLED|2026-01-31T12:00:00|2026-01-31T12:00:00|2026-01-31T12:00:00|2026-01-31T12:10:13|613|1|1||512M|1||
4004|4003_[2-9%4]|bob|PENDING|2026-01-31T11:59:30|2026-01-31T11:59:30|Unknown|Unknown|0|0|1|4000M|||10|short
4005|4005|eve|RUNNING|2026-01-31T13:00:00|2026-01-31T13:00:00|2026-01-31T13:00:00|Unknown|999|4|1||||UNLIMITED|batch
4006|4006|eve|FAILED|2026-01-31T13:00:01|2026-01-31T13:00:01|2026-01-31T13:00:02|2026-01-31T13:00:02|0|4|1|?|||Partition_Limit|
"""


@dataclass(frozen=True)
class Ran:
    """A job of the site; `core_mib` is requested per core and `used_kib` used in total, None if unknown."""

    number: int
    task: int | None
    submit_s: int
    wait_s: int
    run_s: int
    cores: int
    core_mib: int | None
    used_kib: int | None
    limit_min: int | None
    queue: str


_EPOCHS = st.integers(1_500_000_000, 1_900_000_000)  # 2017 to 2030
_NAMES = st.text("abcxyz019-_.äö", max_size=8)

_jobs = st.builds(
    Ran,
    number=st.integers(1, 10**9),
    task=st.none() | st.integers(1, 75_000),
    submit_s=_EPOCHS,
    wait_s=st.integers(0, 10**6),
    run_s=st.integers(0, 10**7),
    cores=st.integers(1, 512),
    core_mib=st.none() | st.integers(1, 10**5),
    used_kib=st.none() | st.integers(1, 10**9),
    limit_min=st.none() | st.integers(1, 10**6),
    queue=_NAMES,
)


def _without_clashes(jobs: list[Ran]) -> bool:
    """Whether no number is used both by a job without a task and by one with a task, which no site has."""
    kinds: dict[int, bool] = {}
    return all(kinds.setdefault(job.number, job.task is None) == (job.task is None) for job in jobs)


site_jobs = st.lists(_jobs, min_size=1, max_size=8, unique_by=lambda job: (job.number, job.task)).filter(
    _without_clashes
)


def expected_jobs(jobs: list[Ran]) -> list[Job]:
    """Return the jobs of a trace with one task per core, as the documentation of the command defines them."""
    largest = max((job.task or 0 for job in jobs), default=0)
    shift = 10 ** len(str(largest)) if any(job.task is not None for job in jobs) else 1
    first_s = min(job.submit_s for job in jobs)
    found = []
    for job in sorted(jobs, key=lambda job: job.submit_s):
        sizes = [0 if job.core_mib is None else job.core_mib * job.cores * _MIB, (job.used_kib or 0) * 1024]
        share = max(sizes) / job.cores / NODE_BYTES if max(sizes) else 1 / CORES_PER_NODE
        found.append(
            Job(
                job.number * shift + (job.task or 0),
                float(job.submit_s - first_s),
                job.cores,
                1 / CORES_PER_NODE,
                min(share, 1.0),
                float(job.run_s or 1),
                job.queue or None,
                None if job.limit_min is None else 60.0 * job.limit_min,
            )
        )
    return found


def close_to(jobs: list[Job]) -> list[Job]:
    """Return jobs that equal the given ones, but for the rounding of these fractions."""
    return [replace(job, mem_req_frac=pytest.approx(job.mem_req_frac, rel=1e-12)) for job in jobs]


def mutations(text: str) -> st.SearchStrategy[str]:
    """Return texts in which characters are replaced, removed and inserted at up to four places."""

    def mutated(changes: list[tuple[int, int, str]]) -> str:
        changed = text
        for place, left_out, inserted in changes:
            changed = changed[:place] + inserted + changed[place + left_out :]
        return changed

    change = st.tuples(st.integers(0, len(text)), st.integers(0, 3), st.text(max_size=3))
    return st.lists(change, max_size=4).map(mutated)


def assert_jobs_or_error(read: Callable[[str], list[Job]], text: str) -> None:
    """Assert that a text gives jobs within their bounds, or a user error in one line."""
    try:
        jobs = read(text)
    except UserError as error:
        lines = str(error).splitlines()
    else:
        lines = [""]
        assert jobs[0].submit_time_s == 0
        assert all(job.tasks >= 1 and 0 < job.cpu_need_frac <= 1 and 0 < job.mem_req_frac <= 1 for job in jobs)
        assert parse_table(format_table(jobs), "t.csv") == jobs
    assert len(lines) == 1


def sacct_text(jobs: list[Ran], *, raw: bool) -> str:
    """Return what sacct prints with TZ=UTC: with raw numbers, in newer forms, or as version 20.11 did."""
    lines = ["Partition|JobID|Submit|Start|End|State|NCPUS|ReqMem|MaxRSS|Elapsed|Timelimit"]
    if raw:
        lines = ["ReqMem|MaxRSS|NTasks|JobIDRaw|Submit|ElapsedRaw|AllocCPUS|TimelimitRaw|Partition|NNodes"]
    for job in jobs:
        name = str(job.number) if job.task is None else f"{job.number}_{job.task}"
        submit, start, end = (_iso(job.submit_s + s) for s in (0, job.wait_s, job.wait_s + job.run_s))
        used = "" if job.used_kib is None else f"{job.used_kib}K"
        if raw:
            memory = "" if job.core_mib is None else f"{job.core_mib * job.cores}M"
            limit = "UNLIMITED" if job.limit_min is None else str(job.limit_min)
            lines.append(f"{memory}|||{job.number}|{submit}|{job.run_s}|{job.cores}|{limit}|{job.queue}|1")
            lines.append(f"|{used}|1|{job.number}.batch|{submit}|{job.run_s}|{job.cores}|||1")
        else:
            memory = "0n" if job.core_mib is None else f"{job.core_mib}Mc"
            limit = "Partition_Limit" if job.limit_min is None else _clock(60 * job.limit_min)
            times = f"{submit}|{start}|{end}|COMPLETED"
            lines.append(f"{job.queue}|{name}|{times}|{job.cores}|{memory}||{_clock(job.run_s)}|{limit}")
            lines.append(f"|{name}.0|{times}|{job.cores}||{used}|{_clock(job.run_s)}|")
    return "\n".join(lines) + "\n"


def qacct_text(jobs: list[Ran], form: str) -> str:
    """Return what `TZ=UTC qacct -j` prints in Sun's Grid Engine 6, Son of Grid Engine, Univa's, or Gridware's."""
    text = ""
    for job in jobs:
        times = [_MOMENTS[form](job.submit_s + s) for s in (0, job.wait_s, job.wait_s + job.run_s)]
        requests = [] if job.limit_min is None else [f"h_rt={60 * job.limit_min}"]
        requests += [] if job.core_mib is None else [f"h_vmem={job.core_mib}M"]
        lines = {
            "qname": job.queue,
            "hostname": "node-1",
            "jobname": "a name with blanks",
            "jobnumber": job.number,
            "taskid": "undefined" if job.task is None else job.task,
            "qsub_time": times[0],
            "start_time": times[1],
            "end_time": times[2],
            "granted_pe": "NONE",
            "slots": job.cores,
            "failed": "0",
            "exit_status": "137                  (Killed)",
            "ru_wallclock": f"{job.run_s}s" if form == "son" else f"{job.run_s}.000" if form == "univa" else job.run_s,
            "maxvmem": _size(job.used_kib, form),
            "category": f"-u someone -l {','.join(requests)} -pe mpi {job.cores}" if requests else "-u someone",
        }
        if form in ("univa", "gridware"):
            lines |= {"pe_taskid": "NONE", "maxrss": "0.000"}
        if form == "univa":  # this form has the command in place of categories
            lines["submit_cmd"] = f"qsub -l {','.join(requests)} job.sh" if requests else "qsub job.sh"
            del lines["category"]
        width = 35 if form == "gridware" else 13
        text += "=" * 62 + "\n" + "".join(f"{key:<{width}}{value!s:<20}\n" for key, value in lines.items())
    return text


def _iso(unix_time_s: int) -> str:
    return f"{datetime.fromtimestamp(unix_time_s, UTC):%Y-%m-%dT%H:%M:%S}"


def _ctime(unix_time_s: int) -> str:
    moment = datetime.fromtimestamp(unix_time_s, UTC)
    return f"{day_abbr[moment.weekday()]} {month_abbr[moment.month]} {moment.day:2} {moment:%H:%M:%S %Y}"


_MOMENTS = {
    "sun": _ctime,
    "son": _ctime,
    "univa": lambda time_s: f"{datetime.fromtimestamp(time_s, UTC):%m/%d/%Y %H:%M:%S}.000",
    "gridware": lambda time_s: f"{datetime.fromtimestamp(time_s, UTC):%Y-%m-%d %H:%M:%S}.000000",
}


def _size(kib: int | None, form: str) -> str:
    if kib is None:
        return {"son": "0.000B", "gridware": "0"}.get(form, "0.000")
    return {"son": f"{kib}.000KB", "gridware": str(kib * 1024)}.get(form, f"{kib}.000K")


def _clock(seconds: int) -> str:
    days, rest = divmod(seconds, 86400)
    text = f"{rest // 3600:02}:{rest % 3600 // 60:02}:{rest % 60:02}"
    return f"{days}-{text}" if days else text
