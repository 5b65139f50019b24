"""The trials of a synthetic calibration: a seeded law with noise and outliers, as a journal on disk."""

import json
import random

MEMORIES_MIB = (128, 256, 512, 1024)
LEVELS = (1, 2, 4)
DISK_MIB_PER_S, TOTAL_MIB_PER_S = 300.0, 420.0
BEGIN = {
    "kind": "begin",
    "created_unix_s": 1795267800.0,
    "lab": "bench-lab",
    "scenario": "two-nodes",
    "seed": 7,
    "quick": False,
    "experiments": [],
    "skipped": {},
    "testbed": "0.4.0",
    "controller": {"kernel": "6.1.0-31-amd64", "cores": 16, "python": "3.11.9"},
    "nodes": {
        name: {
            "cpus": 4.0, "memory_mib": 8192, "machine_cores": 16, "machine_memory_mib": 65536,
            "cpu_model": "Imaginary <i>CPU</i> 3.0 GHz", "kernel": "6.1.0-31-amd64", "driver": "libvirt",
            "capabilities": ["accel:kvm", "live-migration", "native"], "versions": {"qemu": "8.2.2", "libvirt": "10.0"},
            "address": "10.1.0.2", "image_port": 7070, "image_free_mib": 90000, "image_stores": ["disk", "memory"],
        }
        for name in ("node0", "node1")
    },
    "migration": "save-restore",
    "time_scale": 20.0,
    "core_units_per_s": 1234567.0,
}  # fmt: skip


class Law:
    """Plausible times and rates of a lab; one seed determines every draw."""

    def __init__(self, seed):
        self.draw = random.Random(seed)  # noqa: S311  # draws of a test are no secret

    def noisy(self, value, sigma=0.04, wild=0.0):
        scale = 3.0 if self.draw.random() < wild else 1.0
        return round(value * scale * self.draw.lognormvariate(0.0, sigma), 6)

    def rescheduling(self, memory_mib, touched_frac=1.0, storage="disk", concurrent=1, cache="warm", **_more):
        image_mib = memory_mib * touched_frac + 30.0
        rate = (DISK_MIB_PER_S if storage == "disk" else 1500.0) / max(
            1.0, concurrent * DISK_MIB_PER_S / TOTAL_MIB_PER_S
        )
        save_s = self.noisy(1.0 + image_mib / rate, wild=0.03)
        restore_s = self.noisy(0.6 + image_mib / (3.0 * rate if cache == "warm" else rate), wild=0.02)
        first_s = self.noisy(0.25, 0.2)
        penalty_s = save_s + restore_s + first_s
        write_s = 0.7 * (save_s - 0.4)
        return {
            "save_s": save_s, "hold_s": self.noisy(0.02, 0.3), "write_reported_s": write_s,
            "sync_reported_s": 0.25 * (save_s - 0.4), "image_mib": image_mib, "pause_s": 2.0,
            "restore_s": restore_s, "first_progress_s": first_s, "penalty_s": penalty_s,
            "felt_s": self.noisy(penalty_s + 0.12, 0.01), "cached_frac": 1.0 if cache == "warm" else 0.02,
        }  # fmt: skip


def save_restore(law, condition):
    return [law.rescheduling(**condition) for _ in range(condition["concurrent"])]


def mpi_save_restore(law, condition):
    seen = law.rescheduling(condition["memory_mib"])
    return [seen | {"hold_skew_s": law.noisy(0.008, 0.5), "release_skew_s": law.noisy(0.03, 0.5)}]


def transfer(law, condition):
    image_mib = condition["memory_mib"] * condition["touched_frac"] + 30.0
    slow = max(1.0, condition["concurrent"] / 1.5)
    return [
        {"transfer_s": law.noisy(0.1 + image_mib * slow / 900.0), "image_mib": image_mib}
        for _ in range(condition["concurrent"])
    ]


def live_migration(law, condition):
    moved_mib = 1.3 * condition["memory_mib"] * condition["touched_frac"] + 60.0
    found = []
    for _ in range(condition["concurrent"]):
        migrate_s = law.noisy(1.5 + moved_mib * condition["concurrent"] / 500.0)
        downtime_s = law.noisy(0.12, 0.3)
        found.append(
            {"migrate_s": migrate_s, "reported_s": migrate_s - 0.8, "downtime_reported_s": downtime_s,
             "felt_s": downtime_s + law.noisy(0.3, 0.2), "moved_mib": moved_mib, "rounds": 3}
        )  # fmt: skip
    return found


def start(law, condition):
    found = []
    for _ in range(condition["concurrent"]):
        start_s = law.noisy(0.9 + 0.0004 * condition["memory_mib"] + 0.2 * condition["concurrent"])
        first_s = law.noisy(2.5 + 0.3 * condition["tasks"], 0.08)
        found.append({"start_s": start_s, "first_progress_s": first_s, "ready_s": start_s + first_s})
    return found


def beside(law, condition):
    alone_s = {"start": 0.6, "save": 0.4, "resume": 0.5}
    slower = {"start": 0.4, "save": 0.1, "resume": 0.35}
    alone = {f"{name}_s": law.noisy(time_s) for name, time_s in alone_s.items()}
    among = {
        f"beside_{name}_s": law.noisy(time_s * (1.0 + slower[name] * condition["neighbours"]))
        for name, time_s in alone_s.items()
    }
    return [{"running": condition["neighbours"]} | alone | among]


def enactment(law, condition):
    base_s = {"cap": 0.004, "hold": 0.006, "release": 0.005}[condition["command"]]
    return [{"round_trip_s": law.noisy(base_s * condition["guests"] ** 0.5, 0.4)} for _ in range(12)]


def bus(law, _condition):
    return [{"round_trip_s": law.noisy(0.0016, 0.35, wild=0.01)} for _ in range(60)]


def decision(law, condition):
    return [{"decide_s": law.noisy(2e-5 * condition["jobs"] ** 1.3, 0.2)} for _ in range(5)]


def cap_accuracy(law, condition):
    asked = condition["cap_frac"] * condition["vcpus"]
    return [
        {
            "window_s": window_s, "requested_cores": asked, "used_cores": asked + law.draw.gauss(-0.003, 0.001),
            "worst_error_frac": law.noisy(0.03 / window_s**0.5, 0.3),
            "p95_error_frac": law.noisy(0.015 / window_s**0.5),
            "windows": 50, "read_back_cores": asked,
        }
        for window_s in (0.1, 1.0, 10.0)
    ]  # fmt: skip


def cap_response(law, _condition):
    return [{"command_s": law.noisy(0.004, 0.3), "response_s": law.noisy(0.09, 0.5), "changes": 3} for _ in range(3)]


def share_accuracy(law, condition):
    weights = [int(part) for part in condition["weights"].split(":")]
    used = [law.noisy(0.8 * weight / sum(weights), 0.02) for weight in weights]
    return [
        {
            "guest": number, "weight": weight, "share_cores": 0.8 * weight / sum(weights),
            "read_back_cores": 0.8 * weight / sum(weights), "used_cores": cores, "all_used_cores": sum(used),
            "got_ratio": (cores / sum(used)) / (weight / sum(weights)),
            "cores_ratio": cores / (0.8 * weight / sum(weights)), "p95_error_frac": law.noisy(0.05, 0.3),
        }
        for number, (weight, cores) in enumerate(zip(weights, used, strict=True), 1)
    ]  # fmt: skip


def proportionality(law, condition):
    bend = {"serial": 0.0, "parallel": 0.06 + 0.0005 * condition["message_bytes"] ** 0.5}[condition["kind"]]
    found = []
    for yield_frac in (0.1, 0.25, 0.5, 0.75, 1.0):
        relative = law.noisy(yield_frac + bend * yield_frac * (1 - yield_frac), 0.015)
        found.append(
            {"yield_frac": yield_frac, "units_per_s": 1e6 * relative, "dedicated_units_per_s": 1e6,
             "relative_rate": relative, "used_cores": yield_frac * condition["tasks"]}
        )  # fmt: skip
    return found


def isolation(law, condition):
    relative = law.noisy(1.0 - 0.012 * condition["neighbours"], 0.01)
    return [{"units_per_s": 1e6 * relative, "alone_units_per_s": 1e6, "relative_rate": relative}]


def virtualisation(law, condition):
    loss = {"native": 0.0, "guest": 0.01, "capped-guest": 0.02}[condition["where"]]
    if condition["program"] == "patterns":
        loss *= 6.0
    rate = 1e6 * (1.0 - loss)
    cap = condition["cap_frac"] if condition["where"] == "capped-guest" else 1.0
    return [{"units_per_s": law.noisy(rate * cap, 0.012), "units_per_cpu_s": law.noisy(rate, 0.008)}]


def _job(memory_mib=512, **more):
    return {
        "memory_mib": memory_mib, "touched_frac": 1.0, "storage": "disk", "concurrent": 1, "cache": "warm",
        "program": "eatcpu",
    } | more  # fmt: skip


def _pairs(kind, tasks, topology, message_bytes):
    return {"kind": kind, "tasks": tasks, "topology": topology, "message_bytes": message_bytes, "iteration_s": 0.02}


EXPERIMENTS = {
    "save-restore": (save_restore, [
        *(_job(memory_mib, concurrent=level) for memory_mib in MEMORIES_MIB for level in LEVELS),
        *(_job(touched_frac=part) for part in (0.25, 0.5)), _job(storage="memory"), _job(cache="cold"),
    ]),
    "mpi-save-restore": (mpi_save_restore, [
        {"memory_mib": 256, "tasks": 2, "topology": topology, "moved": moved}
        for topology in ("ring", "all-to-all") for moved in (0, 1)
    ]),
    "transfer": (transfer, [
        {"memory_mib": memory_mib, "touched_frac": 1.0, "concurrent": level}
        for memory_mib in MEMORIES_MIB for level in (1, 2)
    ]),
    "live-migration": (live_migration, [
        {"memory_mib": memory_mib, "touched_frac": 1.0, "concurrent": level}
        for memory_mib in MEMORIES_MIB for level in (1, 2)
    ]),
    "start": (start, [
        *({"memory_mib": mib, "tasks": 1, "concurrent": level} for mib in MEMORIES_MIB for level in (1, 4)),
        {"memory_mib": 256, "tasks": 2, "concurrent": 1},
    ]),
    "beside": (beside, [{"neighbours": others} for others in (1, 2, 3)]),
    "enactment": (enactment, [
        {"command": command, "guests": guests} for command in ("cap", "hold", "release") for guests in (1, 4)
    ]),
    "bus": (bus, [{}]),
    "decision": (decision, [
        {"policy": policy, "jobs": 2 * nodes, "nodes": nodes}
        for policy in ("Greedy */OPT=MIN", "MCB8 */per/OPT=MIN/MINVT=600") for nodes in (2, 16, 128)
    ]),
    "cap-accuracy": (cap_accuracy, [
        {"cap_frac": part, "vcpus": vcpus} for part in (0.05, 0.25, 0.5, 0.75, 0.95) for vcpus in (1, 2)
    ]),
    "cap-response": (cap_response, [
        {"from_frac": a, "to_frac": b, "vcpus": 1} for a, b in ((0.2, 0.8), (0.8, 0.2), (0.5, 0.1))
    ]),
    "share-accuracy": (share_accuracy, [
        {"driver": "process", "weights": weights, "seconds": 10.0} for weights in ("1:1", "1:2", "1:2:3", "1:2:3:4")
    ]),
    "proportionality": (proportionality, [
        _pairs("serial", 1, "", 0), _pairs("parallel", 2, "ring", 4096), _pairs("parallel", 2, "ring", 65536),
        _pairs("parallel", 4, "all-to-all", 4096),
    ]),
    "isolation": (isolation, [
        {"cap_frac": part, "neighbours": others} for part in (0.25, 0.5) for others in range(4)
    ]),
    "virtualisation": (virtualisation, [
        {
            "program": program, "where": where, "ranks": ranks, "iteration_s": iteration_s,
            "cap_frac": 0.5 if where == "capped-guest" else 1.0,
        }
        for program, ranks, iteration_s in (("eatcpu", 1, 0.02), ("patterns", 2, 0.02), ("patterns", 2, 0.005))
        for where in ("native", "guest", "capped-guest")
    ]),
}  # fmt: skip


def write_trials(folder, *, blocks=10, seed=7, leave_out=(), failing=()):
    """Write a journal of all experiments except `leave_out`; one trial of each of `failing` failed."""
    law = Law(seed)
    names = [name for name in EXPERIMENTS if name not in leave_out]
    begin = BEGIN | {
        "experiments": list(EXPERIMENTS),
        "skipped": dict.fromkeys(leave_out, "needs <what> this lab does not have"),
    }
    lines = [begin]
    number, t_s = 0, 0.0
    for block in range(blocks):
        for name in names:
            run, conditions = EXPERIMENTS[name]
            for condition in conditions:
                number += 1
                t_s += 9.0
                entry = {
                    "kind": "trial", "trial": number, "experiment": name, "block": block, "condition": condition,
                    "observations": run(law, condition), "elapsed_s": law.noisy(9.0, 0.1), "t_s": t_s,
                    "foreign_cpu_frac": law.noisy(0.02, 0.5),
                }  # fmt: skip
                if block == 0 and name in failing and condition == conditions[0]:
                    entry |= {"kind": "failed", "observations": [], "error": "guest <g1> failed: no <space> left"}
                lines.append(entry)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "trials.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path
