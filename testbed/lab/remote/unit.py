"""The agent's command line and systemd unit, for both `testbed node add` and the Ansible role."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from testbed.bus.drivers import traits_of
from testbed.errors import UserError, shown
from testbed.lab.remote.hosts import Host

_RUNTIME = "/run/"
_HIDDEN = ("/home", "/root", "/run/user")  # by ProtectHome

_PLAIN = re.compile(r"[A-Za-z0-9_:/.,@%+=?&~\[\]-]+")  # literal for systemd, except for the percent sign

_UNIT = """# Written by the testbed; change it by `systemctl edit dfrs-agent`.
[Unit]
Description=Agent of node {node} in lab {lab}
After={after}
Wants=network-online.target

[Service]
ExecStart={command}
{folders}
Restart=always
RestartSec=2
TimeoutStopSec=60
# the processes that keep guests, and destroy them at their fences, outlive a killed agent; an agent that ends normally
# ends these processes itself
KillMode=process
# the control groups of guests are below this unit's group, so a reload of systemd does not reset their quotas
Slice=dfrs.slice
Delegate=cpu cpuset memory pids
# a process that the kernel kills for lack of memory, such as a guest, must not end the others
OOMPolicy=continue
{memory}
# the size of systemd's journal is bounded by its own configuration; this limit keeps one unit from filling it
LogRateLimitIntervalSec=30
LogRateLimitBurst=3000
# root with few capabilities: the remaining ones are for control groups, page caches of images, and libvirt's socket
NoNewPrivileges=true
CapabilityBoundingSet=CAP_DAC_OVERRIDE CAP_KILL CAP_SYS_NICE
AmbientCapabilities=
ProtectSystem=strict
ProtectHome=true
PrivateTmp=true
ProtectClock=true
ProtectHostname=true
ProtectKernelLogs=true
ProtectKernelModules=true
ProtectKernelTunables=true
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
RestrictNamespaces=true
RestrictRealtime=true
RestrictSUIDSGID=true
LockPersonality=true
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallErrorNumber=EPERM
UMask=0077

[Install]
WantedBy=multi-user.target
"""


def command_of(lab: str, broker: str, host: Host) -> list[str]:
    """Return the command line of a machine's agent."""
    secured = ["--tls-dir", host.certificate_folder] if broker.startswith("mqtts://") else []
    options = [word for name, value in host.options.items() for word in ("--option", f"{name}={value}")]
    return [
        f"{host.home}/venv/bin/node-agent", "--lab", lab, "--node", host.name, "--broker", broker, *secured,
        "--address", host.address, "--cpus", f"{host.cpus:g}", "--memory-mib", str(host.memory_mib),
        "--driver", host.driver, *options,
        "--state-dir", host.state_folder, "--image-dir", host.image_folder,
        *(("--image-budget-mib", str(host.image_budget_mib)) if host.image_budget_mib else ()),
        "--agent-memory-mib", str(host.agent_memory_mib),
    ]  # fmt: skip


def unit(lab: str, broker: str, host: Host) -> str:
    """Return the systemd unit of a machine's agent; raises `UserError` for folders that are hidden from the unit."""
    for folder in (host.home, host.certificate_folder, host.state_folder, host.image_folder):
        if any(PurePosixPath(folder).is_relative_to(hidden) for hidden in _HIDDEN):
            raise UserError(
                f"node {host.name}: {folder}: expected a folder outside {', '.join(_HIDDEN)}, which the agent's unit "
                "does not see"
            )
    hypervisor = " libvirtd.service" if traits_of(host.driver).hypervisor else ""
    words = [_word(host, each) for each in command_of(lab, broker, host)]
    return _UNIT.format(
        node=host.name, lab=lab, after=f"network-online.target{hypervisor}", command=" ".join(words),
        folders="\n".join(_folders(host)), memory=_memory(host),
    )  # fmt: skip


def _word(host: Host, word: str) -> str:
    """Return an argument in systemd's syntax; raises `UserError` for a text that systemd would interpret."""
    if not _PLAIN.fullmatch(word):
        raise UserError(f"node {host.name}: {shown(word)}: expected a word of a unit, without blanks, quotes, \\ and $")
    return word.replace("%", "%%")


def _folders(host: Host) -> list[str]:
    """Return the unit's settings for writable folders: claims, state and images of the agent, consoles of guests."""
    lines = ["StateDirectory=dfrs-agent", "StateDirectoryMode=0755"]
    writable = [host.image_folder]
    name = host.state_folder.removeprefix(_RUNTIME)
    if host.state_folder.startswith(_RUNTIME) and "/" not in name:
        lines += [f"RuntimeDirectory={name}", "RuntimeDirectoryMode=0700", "RuntimeDirectoryPreserve=restart"]
    else:
        writable.append(host.state_folder)
    writable += ["/dev/shm", "-/var/log/libvirt/qemu", "-/var/log/xen/console"]  # noqa: S108  # not a file of ours
    return [*lines, f"ReadWritePaths={' '.join(writable)}"]


def _memory(host: Host) -> str:
    """Return the unit's memory bound, if its guests are not part of the unit.

    The bound includes page cache: images that the agent copies are as large as the node's memory, and their cached
    pages make restores fast.
    """
    if not host.agent_memory_mib or traits_of(host.driver).guests_are_children:
        return "# no MemoryMax: guests may be processes below this unit; the agent bounds itself, --agent-memory-mib"
    return f"MemoryMax={host.agent_memory_mib + host.memory_mib}M"
