"""Policies by name: the scheme of [RR], the algorithms of [IPDPS], the baselines, and plug-ins.

A plug-in is an entry point of the group `testbed.policies`. Its name is the name of a policy, or of a family
of policies: the part before the first "/". It is a callable that gets the whole name as the user wrote it and
the period in seconds, and returns a `testbed.scheduling.policies.view.Policy`; it raises `UserError` for a name of its
family that it does not know.

    [project.entry-points."testbed.policies"]
    SJF = "my_package.policies:shortest_job_first"
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

from testbed.errors import UserError, nearest, shown
from testbed.scheduling.policies import discovering, ipdps, priced, suffixes
from testbed.scheduling.policies.batch import BatchPolicy
from testbed.scheduling.policies.configuration import (
    DEFAULT_PERIOD_S,
    NotInGrammarError,
    catalogue,
    parse_configuration,
)
from testbed.scheduling.policies.decision import rules_of
from testbed.scheduling.policies.dfrs import DfrsPolicy
from testbed.scheduling.policies.discovering import DiscoveringPolicy
from testbed.scheduling.policies.dps import DPS
from testbed.scheduling.policies.priced import PricedPolicy
from testbed.scheduling.policies.view import Policy
from testbed.scheduling.policies.within import WithinPolicy, split
from testbed.scheduling.policies.xge import XgePolicy, named

EQUIPARTITION = "EQUIPARTITION"  # a measure of a trace: `testbed.scheduling.simulation.named`
PLUGIN_GROUP = "testbed.policies"
LONGEST_NAME = 200

BASELINES: tuple[Policy, ...] = (
    BatchPolicy("FCFS", backfill=False),
    BatchPolicy("EASY", backfill=True),
    BatchPolicy("EASY/2011", backfill=True, before_shadow=False),
    *DPS,
    XgePolicy(),
)

GRAMMAR = {
    "<on submission>": "Greedy, GreedyP (may pause running jobs), GreedyPM (may move them too), MCB8, nothing",
    " *": "when a job completes, waiting and paused jobs are tried too (MCB8 after MCB8, else Greedy)",
    "/per": "MCB8 maps all jobs again at every multiple of the period",
    "/stretch-per": "the same for the least estimated maximum stretch, not the largest minimum yield",
    "/OPT=MIN": "remaining CPU raises the minimum yield repeatedly",
    "/OPT=AVG": "remaining CPU raises the average yield (with /stretch-per: lowers the average stretch)",
    "/OPT=MAX": "with /stretch-per only: remaining CPU lowers the maximum stretch",
    "/MINVT=s": "MCB8 may pause a running job with less than s seconds of virtual time, but not move it",
    "/MINFT=s": "the same with flow time, the time since submission",
    "/WEIGHTS=jobs": "yields are in proportion to the weights of jobs (column weight of the trace)",
    "/LEAST=jobs": "a job that runs has at least its guaranteed yield (column least_yield_frac), and is not paused",
    "/DECAY=s": "weights decay: a job with s seconds of virtual time has half its weight",
    "/KNOWS=cost": "a pass moves a job only if the minimum yield, less what the move loses until the next pass (with "
    ":s, in s seconds), would be lower without the move",
    "/MOVES=k": "a pass moves at most k jobs: those that gain most",
    "/NEEDS=discovered": "last: CPU needs are estimated from the usage of jobs; declared needs count until then",
    "/WITHIN=dps": "last, and after [IPDPS] names: the tasks of a job divide its CPU, by a bank of the job",
    "/WITHIN=dps/distributed": "the same; tasks give unused CPU to the tasks whose messages they wait for",
    "FCFS": "batch: whole nodes, in order of submission",
    "EASY": "batch: FCFS with backfilling behind a reservation for the head of the queue; uses run time estimates",
    "EASY/2011": "EASY that backfills only beside the reservation; perhaps the variant of the tables of 2011",
    "DPS/none": "work-conserving shares, as booked: a task's CPU need is its share of the node; in order of submission",
    "DPS/distributed": "the same; tasks give unused shares to the tasks whose messages they wait for",
    "DPS/bank": "the same; tasks give unused shares to a bank of the job, which gives them to tasks that are short",
    "XGE": "two virtual clusters on the same nodes, of serial and of parallel jobs; idle parallel nodes are lent",
    "XGE/PARALLEL=f": "the same with a part f of the nodes for parallel jobs (default 0.5)",
    "XGE/LEND=no": "the same without lending",
    "XGE/LONG=s": "urgent jobs (-xge) pause only serial jobs that are estimated to run s seconds or longer",
    EQUIPARTITION: "simulated only: a fluid share of the whole platform for every job, memory and places ignored",
    "GREEDY": "[IPDPS] Greedy; a job that does not fit is tried again 2, 4, 8 … s later, 4096 s at most",
    "GREEDY-PMTN": "[IPDPS] GreedyP; paused jobs are tried at every later event",
    "GREEDY-PMTN-MIGR": "[IPDPS] GreedyP; paused jobs are tried at once and at every event",
    "DYNMCB8": "[IPDPS] MCB8 at every event",
    "DYNMCB8-PER": "[IPDPS] MCB8 at every multiple of the period; DYNMCB8-PER-300 sets the period, here and below",
    "DYNMCB8-ASAP-PER": "[IPDPS] the same, and new jobs are tried with Greedy",
    "DYNMCB8-STRETCH-PER": "[IPDPS] MCB8 for the least estimated maximum stretch at every multiple of the period",
}


def parse(name: str, period_s: float = DEFAULT_PERIOD_S) -> Policy:
    """Return the policy of that name; upper and lower case are equal, and spaces are optional.

    `period_s` is the period of periodic policies, in seconds of trace time. Raises UserError for an unknown name, with
    the nearest known names, and for a measure of a trace, which is not a schedule for nodes.
    """
    if len(name) > LONGEST_NAME:
        raise UserError(f"policy {shown(name, 60)}: expected a name of at most {LONGEST_NAME} characters")
    name, within = split(name)
    watched = discovering.split(name)
    policy = _priced(name if watched is None else watched, period_s)
    if watched is not None:
        return _discovering(policy, within)
    if within is None:
        return policy
    if not isinstance(policy, DfrsPolicy | PricedPolicy):
        raise UserError(
            f"policy {policy.name}: it gives jobs no yields that their tasks could divide: "
            "expected WITHIN= after a DFRS policy, such as GreedyPM */per/OPT=MIN/MINVT=600/WITHIN=dps"
        )
    return WithinPolicy(policy, within)


def _discovering(policy: Policy, within: object) -> Policy:
    """Return the policy with the suffix; raises `UserError` for a policy that cannot have it."""
    if not isinstance(policy, DfrsPolicy | PricedPolicy) or within is not None:
        raise UserError(f"policy {policy.name}: expected NEEDS=discovered last, after a DFRS policy without WITHIN=")
    if policy.knows_guarantees:
        raise UserError(
            f"policy {policy.name}: guarantees of estimated needs would grow with what nodes report: expected "
            "NEEDS=discovered without LEAST="
        )
    return DiscoveringPolicy(policy)


def _priced(name: str, period_s: float) -> Policy:
    """Return the policy of a name that may end with KNOWS= and MOVES=."""
    found = priced.split(name)
    if found is None:
        return _weighted(name, period_s)
    policy = _weighted(found[0], period_s)
    if not isinstance(policy, DfrsPolicy):
        raise UserError(f"policy {policy.name}: expected KNOWS= and MOVES= after a DFRS policy")
    return priced.priced(policy, *found[1:])


def _weighted(name: str, period_s: float) -> Policy:
    """Return the policy of a name that may end with WEIGHTS=, LEAST= and DECAY=."""
    found = suffixes.split(name)
    if found is None:
        return _parse(name, period_s)
    policy = _parse(found[0], period_s)
    if not isinstance(policy, DfrsPolicy):
        raise UserError(f"policy {policy.name}: expected WEIGHTS=, LEAST= and DECAY= after a DFRS policy")
    return suffixes.with_suffixes(policy, found[1])


def _parse(name: str, period_s: float) -> Policy:
    plain = "".join(name.split()).casefold()
    for policy in BASELINES:
        if policy.name.casefold() == plain:
            return policy
    if plain == EQUIPARTITION.casefold():
        raise UserError(
            f"policy {EQUIPARTITION}: it shares one machine without places, so it has no schedule by nodes: "
            "expected a policy; only `testbed simulate` and campaigns know it"
        )
    if (xge := named(name)) is not None:
        return xge
    if found := ipdps.named_rules(plain, period_s):
        return DfrsPolicy(*found)
    try:
        configuration = parse_configuration(name, period_s)
    except NotInGrammarError as error:
        return _from_plugin(name, plain, period_s, error)
    return DfrsPolicy(configuration.name, rules_of(configuration))


def available() -> list[str]:
    """Return the names that `parse` accepts, with 300 s and 600 s in place of all limits; plug-ins come last."""
    names = [policy.name for policy in BASELINES]
    names += ipdps.RULES
    names += [configuration.name for configuration in catalogue()]
    return names + sorted(point.name for point in _plugins())


def _plugins() -> list[EntryPoint]:
    return list(entry_points(group=PLUGIN_GROUP))


def _from_plugin(name: str, plain: str, period_s: float, error: NotInGrammarError) -> Policy:
    family = plain.split("/", maxsplit=1)[0]
    for point in _plugins():
        if point.name.casefold() in {plain, family}:
            policy: Policy = point.load()(name, period_s)
            return policy
    known = [*available(), EQUIPARTITION]
    # Names have letters of both cases, and `nearest` distinguishes cases.
    raise UserError(f"{error}{nearest(name.strip(), known) or nearest(name.strip().upper(), known)}") from None
