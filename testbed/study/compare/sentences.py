"""Sentences on the results of a comparison, for the terminal and for the page."""

from __future__ import annotations

from dataclasses import astuple, fields

from testbed.study.compare.accounting import PARTS, Parts, mean_absolute
from testbed.study.compare.equivalence import DIFFERENT, EQUAL, LEAST_RUNS, Equivalence
from testbed.study.compare.pairs import RunPair
from testbed.study.compare.statistics import Order
from testbed.study.compare.study import TITLES, Group, Judged, Study


def percent(share: float) -> str:
    """Return a fraction as a percentage: two decimal places below 1 %, else one."""
    return f"{share:.2%}" if abs(share) < 0.01 else f"{share:.1%}"


def sentence(text: str) -> str:
    """Return a text with its first letter capitalised."""
    return text[:1].upper() + text[1:]


def repeats(group: Group) -> str:
    """Return a sentence on the number of runs in a group, and on the agreement of their decisions."""
    count = len(group.pairs)
    if count < LEAST_RUNS:
        runs = "1 run" if count == 1 else f"{count} runs"
        return f"{runs}: a verdict needs at least {LEAST_RUNS}, of the same scenario, policy and seed"
    if group.repeats_same_frac is None:
        return f"{count} runs"
    return f"{count} runs; {percent(group.repeats_same_frac)} of decisions have the same placement in two of them"


def core_speed(group: Group) -> str:
    """Return a sentence on the speed of cores in the simulation."""
    if group.of_cpu_time:
        return "the work of jobs is CPU time: the speed of cores does not matter, and progress is the yield"
    if not group.corrected:
        return "simulated on nodes of constant speed: the speed of cores was not recorded, or no model can follow it"
    count = len(group.pairs)
    which = "all runs" if group.corrected == count else f"{group.corrected} of {count} runs"
    return f"simulated on nodes with the measured speed of the cores: {which}"


def judgement(judged: Judged) -> str:
    """Return a sentence on the error of a statistic, its goal, and the noise between repeats."""
    shown = judged.shown
    text = f"{TITLES[judged.name]} {percent(judged.mean)}"
    if shown.runs > 1:
        text += (
            f" (95 % one-sided over {shown.runs} runs: at least {percent(shown.low)}, at most {percent(shown.high)})"
        )
    if judged.raw_errors != judged.errors:
        text += f"; {percent(judged.raw_mean)} on nodes of constant speed"
    text += f": {shown_words(shown)}"
    if judged.band is not None:
        text += f"; repeats predict each other within {percent(judged.band.high)}"
    return text


def shown_words(shown: Equivalence) -> str:
    """Return the verdict on an error in words, with the number of runs needed if nothing is shown."""
    if shown.verdict == EQUAL:
        return f"equal within {percent(shown.goal)}"
    if shown.verdict == DIFFERENT:
        return f"different, beyond {percent(shown.goal)}"
    needed = shown.needed
    more = "more than 1000 runs" if needed is None else f"about {max(needed, shown.runs + 1)} runs"
    return f"not shown to be within {percent(shown.goal)}, nor beyond it: {more} would be needed"


def verdict(found: Study) -> str:
    """Return the verdict as a sentence."""
    if not found.groups:
        return "Nothing to compare: every run was disturbed, or had jobs that failed or did not end."
    if found.verdict == EQUAL:
        return "The simulation is equal to the live runs within the goals."
    if found.verdict == DIFFERENT:
        return "The simulation is different from the live runs."
    none = f", and of {' and '.join(found.absent)} none counts" if found.absent else ""
    return (
        "It is not shown whether the simulation is equal to the live runs within the goals: the runs are too few or "
        f"too noisy{none}."
    )


def decisions(pair: RunPair) -> list[str]:
    """Return sentences on the agreement of decisions and on their first divergence."""
    alignment = pair.alignment
    shares = (
        f"{percent(alignment.same_frac)} of all triggers ({len(alignment.both)} in both, "
        f"{len(alignment.live_only) + len(alignment.simulated_only)} in one only) have the same placement; Jaccard "
        f"similarity of the sets of running jobs {alignment.jaccard_mean:.2f} at decisions, "
        f"{alignment.jaccard_over_time:.2f} over time; {percent(pair.agreement_frac)} of task seconds agree in time "
        "and node"
    )
    lines = [shares]
    if pair.one_step is not None and pair.one_step.decisions:
        step = pair.one_step
        lines.append(
            f"given the live history until then, {percent(step.same_frac)} of {step.decisions} decisions have the "
            f"same placement" + (
                "" if step.progress_error_s is None
                else f"; median error of running jobs' virtual times {step.progress_error_s:.3g} trace s"
            )
        )  # fmt: skip
    first = alignment.first
    if first is None:
        lines.append("no decision differs")
        return lines
    when = ", ".join(
        f"{world} at {time_s:.1f} s"
        for world, time_s in (("live", first.live_s), ("simulated", first.simulated_s))
        if time_s is not None
    )
    lines.append(f"first divergence: {first.trigger} ({when}): {'; '.join(first.chosen)}")
    lines += [f"  view of the policy: {each}" for each in first.seen]
    return lines


def largest_source(group: Group) -> str:
    """Return a sentence on the part of turnarounds with the largest mean absolute difference."""
    sizes = mean_absolute({job: live - simulated for job, (live, simulated) in group.sources.items()})
    named = dict(zip((field.name for field in fields(Parts)), astuple(sizes), strict=True))
    name = max(named, key=named.__getitem__)
    if named[name] <= 0.0:
        return "no part of any turnaround differs"
    return (
        f"largest source of error: {name.removesuffix('_s')} ({PARTS[name]}), mean absolute difference "
        f"{named[name]:.4g} trace s per job"
    )


def order_words(order: Order) -> str:
    """Return a sentence on whether live runs and simulations order the policies alike."""
    told = sum(pair.told_apart for pair in order.pairs)
    live, twins = " < ".join(order.live), " < ".join(order.simulated)
    text = f"by {order.metric}, live {live}; simulated {twins}; Kendall's tau {order.tau:.2f}; "
    if order.same is None:
        return text + "no two policies differ by more than the noise, or the noise is unknown: no order to compare"
    same = "the same order" if order.same else "another order"
    return text + f"{same} for the {told} of {len(order.pairs)} pairs that live runs distinguish"
