"""`testbed trace`: inspect traces, cut, change and convert them, make them."""

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
    help="How an SWF log becomes tasks: hpc2n [RR 5.3.1], processors, processors-estimates; job tables take none.",
)


@click.group(
    short_help="Look at job traces; cut, change, convert, make them.",
    epilog="\b\nExample:\n  testbed trace generate lublin --nodes 128 --jobs 1000 --seed 1 -o trace.csv",
)
def trace() -> None:
    """Look at job traces; cut, change, convert, make them.

    A trace is a job table (.csv, .csv.gz) or a log in the Standard Workload Format (.swf, .swf.gz) of the Parallel
    Workloads Archive, which needs a reading; `testbed trace convert --help` tells of them.
    """


@trace.command(
    epilog="\b\nExample:\n  testbed trace info HPC2N-2002-2.2-cln.swf.gz --reading hpc2n --nodes 120",
)
@_trace_file
@click.option("--nodes", type=int, help="Nodes of the cluster, for the loads.")
@_reading
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
@deferred
def info() -> None:
    """Print the figures of a trace: jobs, span, sizes, run times, needs, loads."""


@trace.command(
    epilog="\b\nExamples, the 11th week of HPC2N as [RR] cuts it, and all 182:\n"
    "  testbed trace segment HPC2N-2002-2.2-cln.swf.gz week10.csv --reading hpc2n --week 10\n"
    "  testbed trace segment HPC2N-2002-2.2-cln.swf.gz --reading hpc2n --weeks hpc2n-weeks",
)
@_trace_file
@click.argument("out", metavar="[OUT]", type=_FILE, required=False)
@click.option("--jobs", metavar="FIRST:COUNT", help="COUNT jobs from index FIRST, 0 the first; re-based to the first.")
@click.option("--window", metavar="START:DURATION", help="Jobs submitted in it, in seconds; re-based to its start.")
@click.option("--week", metavar="K", type=int, help="Jobs with submit time // 604800 = K; re-based to its start.")
@click.option("--weeks", metavar="DIR", type=_FILE, help="Every week, as week-000.csv and so on in a folder; no OUT.")
@_reading
@deferred
def segment() -> None:
    """Cut a segment out of TRACE and write it to OUT, a job table (.csv or .csv.gz); or all its weeks to a folder.

    Weeks without jobs have no file. A new folder appears with all its weeks or not at all, and writing the same
    weeks again leaves it as it is.
    """


@trace.command(
    epilog="\b\nExample, a log without memory as the synthetic traces of [RR 5.3.2]:\n"
    "  testbed trace annotate CTC-SP2-1996-3.1-cln.swf.gz ctc.csv --seed 1",
)
@_trace_file
@_out
@click.option("--seed", type=int, required=True, help="0 or more; the same seed gives the same needs.")
@_reading
@deferred
def annotate() -> None:
    """Give the jobs of TRACE synthetic CPU needs and memory, and write them to OUT, a job table (.csv or .csv.gz).

    [RR 5.3.2]: the task of a one-task job needs a quarter of a node's CPU, any other task all of it. With
    probability 0.55 the tasks of a job need a tenth of a node's memory, else two tenths to ten, each as likely.
    Needs that TRACE has are replaced. A log is read as `processors`, unless --reading says otherwise.
    """


@trace.command(
    epilog="\b\nExample:\n  testbed trace scale trace.csv trace-0.7.csv --nodes 128 --load 0.7",
)
@_trace_file
@_out
@click.option("--nodes", type=int, required=True, help="Nodes of the cluster that the load is for.")
@click.option("--load", type=float, required=True, help="Offered load to come to; [RR] has 0.1 to 0.9.")
@_reading
@deferred
def scale() -> None:
    """Stretch the inter-arrival times of TRACE to an offered load, and write it to OUT, a job table (.csv or .csv.gz).

    The offered load is sum(tasks x run time) / (nodes x (last - first submission)); jobs, their order and the first
    submission stay [RR 5.3.2].
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
    help="TRACE is the accounting of a site (Slurm's sacct --parsable2, Grid Engine's qacct -j), or a run directory.",
)
@click.option("--cores-per-node", metavar="N", type=int, help="With --from: cores (slots, Slurm's CPUs) of a node.")
@click.option(
    "--node-memory-gb",
    metavar="GB",
    type=float,
    help="With --from: memory of a node in 1e9 bytes.  [default: not known; each core has 1/N of the node's]",
)
@click.option(
    "--task",
    type=click.Choice(["core", "node"]),
    help="With --from: what a task is, a core or all that the job has on a node (sacct only).  [default: core]",
)
@click.option(
    "--timezone",
    metavar="NAME",
    help="With --from: time zone of the times, such as Europe/Berlin.  [default: none; every day has 24 hours]",
)
@deferred
def convert() -> None:
    """Write TRACE to OUT in the form of its name: a job table (.csv, .csv.gz), or a log again (.swf, .swf.gz).

    A log becomes a job table under a reading:

    \b
    hpc2n                 nodes of two cores and 2 GiB, memory as the log tells it [RR 5.3.1]
    processors            a task of CPU need 1 and memory 1, so a node of its own, for each
                          processor; run times serve as estimates
    processors-estimates  the same; the requested times (field 9) are the estimates

    Processors are the requested ones (field 8), else the allocated ones (field 5). Run time 0 becomes 1 s. Records
    without run time or processors (-1) and those of partial executions give no job. A missing requested time leaves the
    run time as the estimate. Whatever is left out or adjusted is counted on standard error.

    From log to log every field stays as it was; the lines are checked and put in the archive's columns.

    With --from run, TRACE is a run directory, also of a served lab: its jobs that are done, and the work of deleted
    ones, become a job table that can be replayed under another policy.

    With --from sacct or qacct, TRACE is the accounting of a real site, in a file of any name (.gz is unpacked), and OUT
    is a job table of what the site ran. Ask the batch system for Universal Time, in which no hour is missing or there
    twice:

    \b
    TZ=UTC sacct --allusers --parsable2 --starttime 2026-01-01 --endtime 2026-02-01 --format \\
      JobIDRaw,Submit,Start,End,ElapsedRaw,State,NCPUS,NNodes,ReqMem,MaxRSS,NTasks,TimelimitRaw,Partition
    TZ=UTC qacct -j

    Of accounting in local time, --timezone names the zone. Without the option every day has 24 hours, so submissions
    after a change of the clocks are an hour off.

    A task is a core: its CPU need is 1/N, and a scheduler may place the cores of a job anywhere, as for MPI ranks. With
    --task node a task is what the job had on one node, in equal parts, as for jobs of threads. Grid Engine records no
    nodes. FCFS and EASY give every task a node of its own: for them, --cores-per-node 1 and a core's part of the memory
    make a trace for as many nodes as the site has cores.

    The memory of a job is the larger of requested (ReqMem; h_vmem) and used (the largest step's MaxRSS times
    NTasks; maxrss, or else maxvmem), divided evenly among its tasks. A task needs at most a node's; where no memory is
    known, a core has 1/N.

    The class of a job is its partition or queue, and its estimate the time limit (Timelimit; h_rt). The first job is
    submitted at 0 s. Tasks of arrays are jobs: in a trace whose largest task is 250, task 4 of array 123 is job 123004,
    and job 124 is 124000; JobIDRaw has numbers without that. Jobs that never ran or had not ended are left out. A job
    that ran again or is there twice is submitted at the earliest time, and runs as long as the last time.
    """  # noqa: D301  # \b keeps click from wrapping the list


@trace.group(short_help="Make synthetic traces.")
def generate() -> None:
    """Make synthetic traces."""


@generate.command(
    epilog="\b\nExample, one of the scaled traces of [RR 5.3.2]:\n"
    "  testbed trace generate lublin --nodes 128 --jobs 1000 --seed 1 --load 0.7 -o trace.csv",
)
@click.option("--nodes", type=int, required=True, help="Nodes of the cluster; the model was fitted for 128.")
@click.option("--jobs", type=int, required=True, help="How many jobs.")
@click.option("--seed", type=int, required=True, help="0 to 2^32 - 1; the same seed gives the same trace.")
@click.option(
    "--mode", default="mixed", show_default=True, help="mixed: batch and interactive jobs; typeless: neither."
)
@click.option("--load", type=float, help="Offered load to scale to, by stretching the inter-arrival times.")
@click.option("-o", "--out", type=_FILE, help="Job table to write (.csv or .csv.gz); standard output without it.")
@deferred
def lublin() -> None:
    """Make a trace by the model of Lublin and Feitelson, with the needs of [RR 5.3.2]."""


@generate.command(
    epilog="\b\nExamples, four weeks as the paper counts them, and with short parallel jobs that are urgent:\n"
    "  testbed trace generate marc --weeks 4 --seed 1 -o marc.csv\n"
    "  testbed trace generate marc --weeks 4 --seed 1 --urgent-s 3600 -o marc-urgent.csv",
)
@click.option("--weeks", type=int, required=True, help="How many weeks, from a Monday's midnight on; 1 to 100.")
@click.option("--seed", type=int, required=True, help="0 to 2^32 - 1; the same seed gives the same trace.")
@click.option("--rate", type=float, default=1.0, show_default=True, help="Jobs per week, relative to the paper's.")
@click.option(
    "--cv",
    type=float,
    default=2.0,
    show_default=True,
    help="Coefficient of variation of run times, before the queue's limit cuts them; 0.1 to 10.",
)
@click.option(
    "--farm-jobs",
    type=float,
    default=100.0,
    show_default=True,
    help="Mean number of serial jobs that are submitted at once; 1: each alone.",
)
@click.option("--parallel-farm-jobs", type=float, default=1.0, show_default=True, help="The same for parallel jobs.")
@click.option(
    "--daily", type=float, default=0.5, show_default=True, help="Amplitude of the cycle of the day; 0: none, to 1."
)
@click.option(
    "--weekend", type=float, default=0.5, show_default=True, help="Submissions at weekends, relative to other days."
)
@click.option(
    "--urgent-s",
    type=float,
    default=0.0,
    show_default=True,
    help="Jobs of the queue parallel are urgent that run for so long at most; 0: none is.",
)
@click.option(
    "--memory", type=float, default=0.2, show_default=True, help="Memory of a task, a fraction of a node; to 0.25."
)
@click.option("-o", "--out", type=_FILE, help="Job table to write (.csv or .csv.gz); standard output without it.")
@deferred
def marc() -> None:
    """Make a trace by a model of the load of MARC, the cluster of the University of Marburg in 2006 [XGE].

    About 20,000 jobs a week for 85 nodes of four cores, in five queues, which are their classes. Numbers of jobs, mean
    run times, limits, which are the estimates, and cores of parallel jobs are the paper's. All else is assumed, as
    docs/xge.md says, and has an option.
    """
