"""A comparison in sentences: what the terminal and the page both say."""

from __future__ import annotations

from dataclasses import astuple, fields

from testbed.study.compare.accounting import PARTS, Parts, mean_absolute
from testbed.study.compare.equivalence import DIFFERENT, EQUAL, LEAST_RUNS, Equivalence
from testbed.study.compare.pairs import RunPair
from testbed.study.compare.statistics import Order
from testbed.study.compare.study import TITLES, Group, Judged, Study


def percent(share: float) -> str:
    """Return a share as per cent: with two digits below 1 %, one above."""
    return f"{share:.2%}" if abs(share) < 0.01 else f"{share:.1%}"


def sentence(text: str) -> str:
    """Begin a text with a capital letter, and leave the rest as it is."""
    return text[:1].upper() + text[1:]


def repeats(group: Group) -> str:
    """Return a sentence on the number of runs in a group, and on what so few support."""
    count = len(group.pairs)
    if count < LEAST_RUNS:
        runs = "1 run" if count == 1 else f"{count} runs"
        return f"{runs}: a verdict needs at least {LEAST_RUNS}, of the same scenario, policy and seed"
    if group.repeats_same_frac is None:
        return f"{count} runs"
    return f"{count} runs; two of them place {percent(group.repeats_same_frac)} of decisions alike"


def core_speed(group: Group) -> str:
    """Return a sentence on how the speed of cores was allowed for."""
    if group.of_cpu_time:
        return "jobs had CPU time to use: the speed of cores does not matter"
    if not group.corrected:
        return "simulated on nodes of constant speed: how fast cores were was not recorded, or there is no model of it"
    count = len(group.pairs)
    which = "all runs" if group.corrected == count else f"{group.corrected} of {count} runs"
    return f"simulated on nodes that are as fast as the cores were: {which}"


def judgement(judged: Judged) -> str:
    """Return a sentence on a statistic against its goal, and on the noise of repeats."""
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
    """Return what is shown of an error, and how many runs would show what is not."""
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
        return "Nothing to compare: every run was disturbed or did not end well."
    if found.verdict == EQUAL:
        return "The simulation is equal to the live runs within the goals."
    if found.verdict == DIFFERENT:
        return "The simulation is different from the live runs."
    return "It is not shown whether the simulation is equal to the live runs within the goals: runs are few, or noisy."


def decisions(pair: RunPair) -> list[str]:
    """Return a sentence on the agreement of decisions and their first divergence."""
    alignment = pair.alignment
    shares = (
        f"{percent(alignment.same_frac)} of {len(alignment.both)} decisions in both and "
        f"{len(alignment.live_only) + len(alignment.simulated_only)} in one only have the same placement; sets of "
        f"running jobs are alike by {alignment.jaccard_mean:.2f} at decisions, {alignment.jaccard_over_time:.2f} over "
        f"time (Jaccard); {percent(pair.agreement_frac)} of task seconds agree in time and node"
    )
    lines = [shares]
    if pair.one_step is not None and pair.one_step.decisions:
        step = pair.one_step
        lines.append(
            f"given what happened live until then, {percent(step.same_frac)} of {step.decisions} decisions have the "
            f"same placement" + (
                "" if step.progress_error_s is None
                else f"; virtual times of running jobs are {step.progress_error_s:.3g} trace s off in the median"
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
    lines += [f"  seen: {each}" for each in first.seen]
    return lines


def largest_source(group: Group) -> str:
    """Return a sentence on the part of turnarounds with the largest error."""
    sizes = mean_absolute({job: live - simulated for job, (live, simulated) in group.sources.items()})
    named = dict(zip((field.name for field in fields(Parts)), astuple(sizes), strict=True))
    name = max(named, key=named.__getitem__)
    if named[name] <= 0.0:
        return "no part of any turnaround differs"
    return (
        f"largest source of error: {name.removesuffix('_s')} ({PARTS[name]}), {named[name]:.4g} trace s a job in the "
        f"mean of absolute differences"
    )


def order_words(order: Order) -> str:
    """Return a sentence on whether policies are ordered alike."""
    told = sum(pair.told_apart for pair in order.pairs)
    live, twins = " < ".join(order.live), " < ".join(order.simulated)
    text = f"by {order.metric}, live {live}; simulated {twins}; Kendall's tau {order.tau:.2f}; "
    if order.same is None:
        return text + "no two policies differ by more than the noise, or it is not known: nothing to order"
    same = "the same order" if order.same else "another order"
    return text + f"{same} of the {told} of {len(order.pairs)} pairs that live runs tell apart"
