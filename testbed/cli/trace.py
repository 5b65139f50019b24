"""`testbed trace`: inspect, cut, change, convert and generate traces."""

from __future__ import annotations

from pathlib import Path

import click

from testbed.cli.deferred import deferred

_FILE = click.Path(path_type=Path)
_trace_file = click.argument("trace_file", metavar="TRACE", type=_FILE)
_out = click.argument("out", metavar="OUT", type=_FILE)
_reading = click.option(
    "--reading",
    metavar="NAME",
    help="Conversion of an SWF log to tasks: hpc2n [RR 5.3.1], processors, processors-estimates; not for job tables.",
)


@click.group(
    short_help="Inspect, cut, change, convert and generate job traces.",
    epilog="\b\nExample:\n  testbed trace generate lublin --nodes 128 --jobs 1000 --seed 1 -o trace.csv",
)
def trace() -> None:
    """Inspect, cut, change, convert and generate job traces.

    A trace is a job table (.csv, .csv.gz) or a log in the Standard Workload Format (.swf, .swf.gz) of the Parallel
    Workloads Archive. A log needs a reading, its conversion to tasks: see `testbed trace convert --help`.
    """


@trace.command(
    epilog="\b\nExample:\n  testbed trace info HPC2N-2002-2.2-cln.swf.gz --reading hpc2n --nodes 120",
)
@_trace_file
@click.option("--nodes", type=int, help="Number of nodes of the cluster, for the loads.")
@_reading
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
@deferred
def info() -> None:
    """Print statistics of a trace: jobs, span, sizes, run times, CPU needs, memory, loads."""


@trace.command(
    epilog="\b\nExamples, the 11th week of HPC2N as [RR] cuts it, and all 182:\n"
    "  testbed trace segment HPC2N-2002-2.2-cln.swf.gz week10.csv --reading hpc2n --week 10\n"
    "  testbed trace segment HPC2N-2002-2.2-cln.swf.gz --reading hpc2n --weeks hpc2n-weeks",
)
@_trace_file
@click.argument("out", metavar="[OUT]", type=_FILE, required=False)
@click.option(
    "--jobs", metavar="FIRST:COUNT", help="COUNT jobs from index FIRST (from 0); times start at the first job."
)
@click.option(
    "--window", metavar="START:DURATION", help="Jobs submitted in this window, in seconds; times start at START."
)
@click.option(
    "--week", metavar="K", type=int, help="Jobs with submit time // 604800 = K; times start at the week's start."
)
@click.option(
    "--weeks", metavar="DIR", type=_FILE, help="Write every week to DIR as week-000.csv and so on; without OUT."
)
@_reading
@deferred
def segment() -> None:
    """Cut a segment out of TRACE and write it to OUT, a job table (.csv or .csv.gz); or all its weeks to a folder.

    Weeks without jobs have no file. A new folder appears with all its weeks or not at all; writing the same weeks again
    changes nothing.
    """


@trace.command(
    epilog="\b\nExample, a log without memory as the synthetic traces of [RR 5.3.2]:\n"
    "  testbed trace annotate CTC-SP2-1996-3.1-cln.swf.gz ctc.csv --seed 1",
)
@_trace_file
@_out
@click.option("--seed", type=int, required=True, help="Seed, 0 or more; the same seed gives the same needs.")
@_reading
@deferred
def annotate() -> None:
    """Give the jobs of TRACE synthetic CPU needs and memory, and write them to OUT, a job table (.csv or .csv.gz).

    As in [RR 5.3.2]: the task of a one-task job needs a quarter of a node's CPU, every other task needs all of it. With
    probability 0.55 the tasks of a job need 0.1 of a node's memory, else 0.2, 0.3, … or 1.0 with equal probability.
    Needs in TRACE are replaced. The default --reading of a log is `processors`.
    """


@trace.command(
    epilog="\b\nExample:\n  testbed trace scale trace.csv trace-0.7.csv --nodes 128 --load 0.7",
)
@_trace_file
@_out
@click.option("--nodes", type=int, required=True, help="Number of nodes of the cluster.")
@click.option("--load", type=float, required=True, help="Offered load of OUT; 0.1 to 0.9 in [RR].")
@_reading
@deferred
def scale() -> None:
    """Stretch the inter-arrival times of TRACE to an offered load, and write it to OUT, a job table (.csv or .csv.gz).

    The offered load is sum(tasks x run time) / (nodes x (last - first submission)). Jobs, their order and the first
    submission do not change [RR 5.3.2].
    """


@trace.command(
    epilog="\b\nExamples:\n"
    "  testbed trace convert HPC2N-2002-2.2-cln.swf.gz hpc2n.csv.gz --reading hpc2n\n"
    "  testbed trace convert KTH-SP2-1996.swf.gz checked.swf\n"
    "  testbed trace convert runs/2026-11-20T10-31-07-xge served.csv --from run\n"
    "  testbed trace convert sacct.txt site.csv --from sacct --cores-per-node 48 --node-memory-gb 192\n"
    "  testbed trace convert qacct.txt.gz site.csv --from qacct --cores-per-node 16 --timezone Europe/Berlin",
)
@_trace_file
@_out
@_reading
@click.option(
    "--from",
    "source",
    type=click.Choice(["sacct", "qacct", "run"]),
    help="Kind of TRACE: accounting of a site (sacct --parsable2 of Slurm, qacct -j of Grid Engine), or run directory.",
)
@click.option("--cores-per-node", metavar="N", type=int, help="With --from: cores of a node (slots; CPUs of Slurm).")
@click.option(
    "--node-memory-gb",
    metavar="GB",
    type=float,
    help="With --from: memory of a node in 1e9 bytes.  [default: unknown; each core has 1/N of it]",
)
@click.option(
    "--task",
    type=click.Choice(["core", "node"]),
    help="With --from: a task is one core, or the part of a job on one node (sacct only).  [default: core]",
)
@click.option(
    "--timezone",
    metavar="NAME",
    help="With --from: time zone of the accounting, such as Europe/Berlin.  [default: none; every day has 24 hours]",
)
@deferred
def convert() -> None:
    """Convert TRACE to the format that the name of OUT gives: job table (.csv, .csv.gz) or log (.swf, .swf.gz).

    A log is converted to a job table with a reading:

    \b
    hpc2n                 nodes of two cores and 2 GiB, memory as in the log [RR 5.3.1]
    processors            one task of CPU need 1 and memory 1 (a whole node) per processor; run
                          times are the estimates
    processors-estimates  the same; the requested times (field 9) are the estimates

    The number of processors is the requested (field 8), else the allocated number (field 5). Run time 0 becomes 1 s.
    Records without run time or processors (-1), and records of partial executions, give no job. Without a requested
    time the run time is the estimate. Omitted and adjusted records are counted on standard error.

    From log to log every field is kept; the lines are checked and aligned to the columns of the archive.

    With --from run, TRACE is a run directory, also of a served lab: its completed jobs, and the work of deleted jobs,
    become a job table that can be replayed under another policy.

    With --from sacct or qacct, TRACE is the accounting of a real site, in a file of any name (.gz is unpacked), and OUT
    is a job table of the jobs that ran there. Ask the batch system for Universal Time, in which no hour is missing or
    repeated:

    \b
    TZ=UTC sacct --allusers --parsable2 --starttime 2026-01-01 --endtime 2026-02-01 --format \\
      JobIDRaw,Submit,Start,End,ElapsedRaw,State,NCPUS,NNodes,ReqMem,MaxRSS,NTasks,TimelimitRaw,Partition
    TZ=UTC qacct -j

    For accounting in local time, --timezone names the time zone. Without the option every day has 24 hours, so
    submissions after a change to or from daylight saving time are wrong by an hour.

    A task is a core: its CPU need is 1/N, and a scheduler may place the cores of a job anywhere, as for MPI ranks. With
    --task node a task is the part of a job on one node, and all tasks of a job are equal, as for multi-threaded jobs.
    Grid Engine records no nodes. FCFS and EASY give every task a whole node: for them, --cores-per-node 1 and the
    memory of one core make a trace for as many nodes as the site has cores.

    The memory of a job is the larger of requested memory (ReqMem; h_vmem) and used memory (MaxRSS times NTasks of the
    largest step; maxrss, or else maxvmem), divided evenly among its tasks. A task needs at most the memory of one node;
    if the memory is unknown, a core needs 1/N.

    The class of a job is its partition or queue, and its estimate is the time limit (Timelimit; h_rt). The first job is
    submitted at 0 s. Tasks of job arrays are jobs: in a trace whose largest task number is 250, task 4 of array 123 is
    job 123004, and job 124 is 124000; with JobIDRaw the numbers are those of the site. Jobs that never ran or had not
    ended are left out. A job with several records (requeued or repeated) has the earliest submit time and the last run
    time.
    """  # noqa: D301  # \b keeps click from wrapping the list


@trace.group(short_help="Generate synthetic traces.")
def generate() -> None:
    """Generate synthetic traces."""


@generate.command(
    epilog="\b\nExample, one of the scaled traces of [RR 5.3.2]:\n"
    "  testbed trace generate lublin --nodes 128 --jobs 1000 --seed 1 --load 0.7 -o trace.csv",
)
@click.option("--nodes", type=int, required=True, help="Number of nodes; the model was fitted for 128.")
@click.option("--jobs", type=int, required=True, help="Number of jobs.")
@click.option("--seed", type=int, required=True, help="Seed, 0 to 2^32 - 1; the same seed gives the same trace.")
@click.option(
    "--mode", default="mixed", show_default=True, help="mixed: batch and interactive jobs; typeless: one kind."
)
@click.option("--load", type=float, help="Offered load; inter-arrival times are stretched to it.")
@click.option("-o", "--out", type=_FILE, help="Job table to write (.csv or .csv.gz).  [default: standard output]")
@deferred
def lublin() -> None:
    """Generate a trace with the model of Lublin and Feitelson, and needs as in [RR 5.3.2]."""


@generate.command(
    epilog="\b\nExamples, four weeks as the paper counts them, and with short parallel jobs that are urgent:\n"
    "  testbed trace generate marc --weeks 4 --seed 1 -o marc.csv\n"
    "  testbed trace generate marc --weeks 4 --seed 1 --urgent-s 3600 -o marc-urgent.csv",
)
@click.option("--weeks", type=int, required=True, help="Number of weeks, from Monday 00:00; 1 to 100.")
@click.option("--seed", type=int, required=True, help="Seed, 0 to 2^32 - 1; the same seed gives the same trace.")
@click.option("--rate", type=float, default=1.0, show_default=True, help="Jobs per week, relative to the paper.")
@click.option(
    "--cv",
    type=float,
    default=2.0,
    show_default=True,
    help="Coefficient of variation of run times before the limit of the queue; 0.1 to 10.",
)
@click.option(
    "--farm-jobs",
    type=float,
    default=100.0,
    show_default=True,
    help="Mean number of serial jobs submitted together; 1: each alone.",
)
@click.option(
    "--parallel-farm-jobs",
    type=float,
    default=1.0,
    show_default=True,
    help="Mean number of parallel jobs submitted together.",
)
@click.option(
    "--daily", type=float, default=0.5, show_default=True, help="Amplitude of the daily cycle, 0 (none) to 1."
)
@click.option(
    "--weekend", type=float, default=0.5, show_default=True, help="Submissions at weekends, relative to other days."
)
@click.option(
    "--urgent-s",
    type=float,
    default=0.0,
    show_default=True,
    help="Jobs of the queue parallel with run times up to this are urgent; 0: none.",
)
@click.option(
    "--memory", type=float, default=0.2, show_default=True, help="Memory of a task, a fraction of a node; to 0.25."
)
@click.option("-o", "--out", type=_FILE, help="Job table to write (.csv or .csv.gz).  [default: standard output]")
@deferred
def marc() -> None:
    """Generate a trace with a model of the load of MARC, the cluster of the University of Marburg in 2006 [XGE].

    About 20,000 jobs per week for 85 nodes of four cores, in five queues, which are the classes of the jobs. Numbers of
    jobs, mean run times, time limits (the estimates) and cores of parallel jobs are from the paper. The rest is assumed
    (docs/xge.md) and has an option.
    """
