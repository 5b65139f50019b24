"""An agent of processes under systemd and control groups of version 2: `python benchmarks/under_systemd.py`.

This system's systemd, Mosquitto, interpreter and testbed run in an emulated machine, with the unit that `testbed node
unit` prints. `in_systemd.py` is the controller in this machine. Guests work under caps that are measured. Then the
agent is killed, systemd starts it again, and it adopts the guests. At the end the unit is stopped. Needs QEMU, systemd,
Mosquitto and the parts of the guest image, but not root. The exit code is 1 if a check failed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from lab import print_machine, print_table
from power_machine import CPU, INIT_BEGIN, SITE, add_program, make_initramfs, make_root, python_path

from testbed.bus.mosquitto import find_mosquitto
from testbed.lab.remote.hosts import Host
from testbed.lab.remote.unit import unit

SYSTEMD = Path("/lib/systemd")
PROGRAMS = (SYSTEMD / "systemd", Path("/bin/systemctl"), Path("/bin/sh"), Path("/bin/cat"), Path("/bin/mount"))
UNITS = (
    "sysinit.target", "basic.target", "shutdown.target", "umount.target", "final.target", "poweroff.target",
    "systemd-poweroff.service", "sockets.target", "timers.target", "paths.target", "slices.target", "local-fs.target",
    "local-fs-pre.target", "swap.target", "-.slice", "system.slice",
)  # fmt: skip
FOLDERS = (
    "run", "var/lib", "var/log", "var/tmp", "root", "home", "opt/dfrs-testbed/state", "opt/dfrs-testbed/images",
)  # fmt: skip
CONTROLLER = Path(__file__).with_name("in_systemd.py")
MARK = "@ "  # begins the line of a result on the console
_FOREVER_S = 1800
_ENVIRONMENT = f"PYTHONPATH={SITE} PYTHONDONTWRITEBYTECODE=1 PATH=/bin HOME=/tmp LANG=C.UTF-8"
_CONSOLE = "StandardOutput=tty\nStandardError=tty\nTTYPath=/dev/ttyS0\n"
_INIT = (
    INIT_BEGIN
    + """\
until [ -e /dev/vda ]; do $busybox usleep 20000; done
$busybox mkdir -p /disk
$busybox mount -t ext4 /dev/vda /disk || $busybox poweroff -f
for place in proc sys dev; do $busybox mount --move /$place /disk/$place; done
exec $busybox switch_root /disk @SYSTEMD@ --unit=check.target --log-target=console --show-status=false
"""
)


def fill(tree: Path) -> None:
    """Put systemd, its units and ours into the folder of the root disk."""
    mosquitto = find_mosquitto()
    if mosquitto is None:
        raise SystemExit("Mosquitto is not installed")
    for program in (*PROGRAMS, Path(mosquitto)):
        add_program(tree, program)
    for folder in (
        "run",
        "var/lib",
        "var/log",
        "var/tmp",
        "root",
        "home",
        "opt/dfrs-testbed/state",
        "opt/dfrs-testbed/images",
    ):
        (tree / folder).mkdir(parents=True, exist_ok=True)
    (tree / "etc/machine-id").write_text(f"{1:032x}\n")
    (tree / "etc/os-release").write_text("ID=debian\n")
    (tree / "etc/group").write_text("root:x:0:\nnogroup:x:65534:\n")
    (tree / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n")
    units = tree / "etc/systemd/system"
    units.mkdir(parents=True)
    for name in UNITS:
        if (SYSTEMD / "system" / name).exists():
            shutil.copy2((SYSTEMD / "system" / name).resolve(), units / name)
    for name, text in own_units(mosquitto).items():
        (units / name).write_text(text)
    shutil.copy2(CONTROLLER, tree / CONTROLLER.name)


def own_units(mosquitto: str) -> dict[str, str]:
    """Return the units by file name; the agent's is the real one, with this interpreter in place of a node's."""
    host = Host(name="a", ssh="a", address="127.0.0.1", cpus=1.0, memory_mib=512)
    agent = unit("local", "mqtt://127.0.0.1:1883", host)
    (command,) = (line for line in agent.splitlines() if line.startswith("ExecStart="))
    words = command.split()[1:]
    agent = agent.replace(
        command, f"ExecStart={python_path()} -m node_agent {' '.join(words)}\nEnvironment={_ENVIRONMENT}"
    )
    if python_path().is_relative_to("/root"):
        agent = agent.replace("ProtectHome=true\n", "")
    check = (
        "[Unit]\nAfter=broker.service\n[Service]\nType=oneshot\n"
        f"ExecStart={python_path()} /{CONTROLLER.name}\nExecStopPost=/bin/systemctl poweroff -f -f\n"
        f"Environment={_ENVIRONMENT}\n{_CONSOLE}"
    )
    return {
        "dfrs-agent.service": agent.replace("[Service]\n", f"[Service]\n{_CONSOLE}", 1),
        "broker.service": f"[Unit]\nBefore=dfrs-agent.service\n[Service]\nExecStart={mosquitto} -p 1883\n",
        "check.service": check,
        "check.target": "[Unit]\nWants=broker.service dfrs-agent.service check.service\nAllowIsolate=yes\n",
        "network-online.target": "[Unit]\n",
        "dfrs.slice": "[Unit]\n",
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--json", type=Path, help="file of the results")
    parser.add_argument("--log", type=Path, default=Path("under-systemd.log"), help="file of the machine's console")
    chosen = parser.parse_args()
    print_machine()
    with tempfile.TemporaryDirectory(prefix="dfrs-s") as room:
        root = make_root(Path(room), fill)
        kernel, initramfs = make_initramfs(Path(room), _INIT.replace("@SYSTEMD@", str(SYSTEMD / "systemd")))
        with chosen.log.open("wb") as log:
            subprocess.run(
                ["qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
                 "-machine", "pc", "-accel", "tcg,tb-size=256", "-cpu", CPU, "-m", "768", "-smp", "2",
                 "-serial", "stdio", "-kernel", str(kernel), "-initrd", str(initramfs),
                 "-append", "console=ttyS0 quiet mitigations=off no_timer_check panic=-1",
                 "-drive", f"if=none,id=root,format=raw,file={root}", "-device", "virtio-blk-pci,drive=root"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, check=False, timeout=_FOREVER_S,
            )  # fmt: skip
    lines = chosen.log.read_text(errors="replace").splitlines()
    results = [json.loads(line.removeprefix(MARK)) for line in lines if line.startswith(MARK)]
    if chosen.json:
        chosen.json.write_text(json.dumps(results, indent=1) + "\n")
    rows = [(each["what"], each["found"], each["expected"], "yes" if each["right"] else "NO") for each in results]
    print_table("An agent under systemd", ["what", "found", "expected", "right"], rows)
    ended = bool(results) and results[-1]["what"] == "end"
    if not ended:
        print(f"the machine did not finish: see {chosen.log}")
    return 0 if ended and all(each["right"] for each in results) else 1


if __name__ == "__main__":
    sys.exit(main())
