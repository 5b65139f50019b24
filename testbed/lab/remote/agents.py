"""Operations over ssh on the agents of machines: install, restart, logs, doctor, cleanup, guest image."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Sequence
from importlib.resources import as_file, files
from pathlib import Path

import msgspec

from testbed.bus.drivers import traits_of
from testbed.errors import UserError, shown
from testbed.host.agents import SERVING
from testbed.lab.doctor.finding import Finding, Severity
from testbed.lab.remote.hosts import Host, Hosts
from testbed.lab.remote.shell import RemoteError, Shell
from testbed.lab.remote.unit import command_of, unit

UNIT = "dfrs-agent"
_INSTALL_S = 900.0
_CLEANUP_S = 300.0
_SERVES_WITHIN_S = 20  # after that its broker may be down, and the agent keeps trying to connect
_FILES = ("ca.pem", "ca.crl", "peers.pem", "peers.crl", "cert.pem", "key.pem")

_SCRIPT = """#!/bin/sh
# Service script of the agent for machines without systemd: start, stop, status.
set -eu
home={home}
pid="$home/agent.pid"
log="$home/agent.log"
# Identified by process id and start in ticks since boot, as ids are reused. A zombie counts as ended.
alive() {{
  [ -s "$pid" ] && [ -s "$pid.began" ] || return 1
  stat=$(cut -d' ' -f3,22 "/proc/$(cat "$pid")/stat" 2>/dev/null) || return 1
  [ "${{stat#Z}}" = "$stat" ] && [ "${{stat#* }}" = "$(cat "$pid.began")" ]
}}
case "${{1:-}}" in
  start)
    alive && exit 0
    cd "$home"
    rm -f "$pid" "$pid.began"
    from=$(($(wc -c < "$log" 2>/dev/null || echo 0) + 1))
    setsid sh -c 'echo $$ > agent.pid; cut -d" " -f22 /proc/$$/stat > agent.pid.began
                  exec "$@" >> agent.log 2>&1' sh {command} < /dev/null &
    for _ in $(seq {within}); do
      sleep 0.2
      if [ -s "$pid.began" ]; then
        alive || {{ tail -c "+$from" "$log" | tail -n 3 >&2; exit 1; }}
        tail -c "+$from" "$log" | grep -q {serving} && exit 0
      fi
    done
    echo "it runs, but does not serve yet: $(tail -c "+$from" "$log" | tail -n 1)" ;;
  stop)
    alive || exit 0
    kill "$(cat "$pid")"
    for _ in $(seq 300); do alive || {{ rm -f "$pid" "$pid.began"; exit 0; }}; sleep 0.2; done
    exit 1 ;;
  status) alive ;;
  *) echo "usage: agent.sh start|stop|status" >&2; exit 2 ;;
esac
"""


def install(
    hosts: Hosts, chosen: Sequence[Host], package: str, certificates: Path | None, say: Callable[[Host, str], None]
) -> Callable[[Shell], str]:
    """Return an idempotent function that installs and starts an agent: Python environment, certificate, service.

    `package` is the path of a wheel on this machine. Raises `UserError` for any other value, because a package that is
    installed as root must not be looked up by its name.
    """
    if not package.endswith(".whl"):
        raise UserError(
            f"--package {package}: expected a wheel that you have built, as dist/dfrs_testbed-0.1.0-py3-none-any.whl "
            "by: pip wheel --no-deps --wheel-dir dist ."
        )
    wheel = Path(package)
    if not wheel.is_file():
        raise UserError(f"{package}: no such wheel")
    for host in chosen:
        if host.service == "systemd":
            unit(hosts.lab, hosts.broker, host)  # raises for folders that its unit could not reach
    if hosts.broker.startswith("mqtts://") and certificates is None:
        raise UserError("a broker at mqtts:// requires certificates: --certificates FOLDER (testbed ca)")
    if certificates is not None:
        _check_lab(hosts, certificates)

    def act(shell: Shell) -> str:
        host = shell.host
        shell.run("mkdir", "-p", "-m", "755", host.home)
        say(host, f"installing {wheel.name}, and its dependencies at locked versions")
        _install_package(shell, wheel)
        if certificates is not None:
            shell.run("mkdir", "-p", "-m", "700", host.certificate_folder)
            for name in _FILES:
                shell.put(certificates / "nodes" / host.name / name, f"{host.certificate_folder}/{name}", 0o600)
        say(host, "starting the agent")
        return _serve(hosts, shell)

    return act


def _check_lab(hosts: Hosts, certificates: Path) -> None:
    """Raise `UserError` for the authority of another lab: its certificates would make the agent that lab's node."""
    path = certificates / "lab.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))["lab"]
    except FileNotFoundError:
        return  # a copy of folders of nodes, without the authority
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{path}: expected the lab's name, as `testbed ca init` writes it: {error}") from None
    if found != hosts.lab:
        raise UserError(
            f"--certificates {certificates}: {path}: lab = {shown(found)}: expected {hosts.lab!r}, the lab of the "
            "hosts file"
        )


def _install_package(shell: Shell, wheel: Path) -> None:
    """Install the wheel and its dependencies in a virtual environment of its own, which is created if missing."""
    home = shell.host.home
    shell.run("mkdir", "-p", f"{home}/locks")
    with as_file(files("testbed.lab.remote")) as here:
        for lock in sorted((here / "locks").glob("*.txt")):
            shell.put(lock, f"{home}/locks/{lock.name}")
        shell.put(here / "install-agent", f"{home}/install-agent", 0o755)
    copy = f"{home}/{wheel.name}"
    shell.put(wheel, copy)
    shell.run("sh", f"{home}/install-agent", home, traits_of(shell.host.driver).extra, copy, within_s=_INSTALL_S)


def _serve(hosts: Hosts, shell: Shell) -> str:
    host = shell.host
    command = command_of(hosts.lab, hosts.broker, host)
    shell.run("mkdir", "-p", "-m", "700", host.state_folder, host.image_folder)
    if host.service == "script":
        serving = shlex.quote(SERVING % (host.name, hosts.lab))
        text = _SCRIPT.format(home=host.home, command=shlex.join(command), within=_SERVES_WITHIN_S * 5, serving=serving)
        shell.write(text, f"{host.home}/agent.sh", 0o755)
    else:
        shell.write(unit(hosts.lab, hosts.broker, host), f"/etc/systemd/system/{UNIT}.service")
        shell.run("systemctl", "daemon-reload")
        shell.run("systemctl", "enable", UNIT)
    return restart(shell)


def restart(shell: Shell) -> str:
    """Restart the agent of a machine; its guests are destroyed."""
    host = shell.host
    if host.service == "script":
        shell.run(f"{host.home}/agent.sh", "stop", within_s=90)
        said = shell.run(f"{host.home}/agent.sh", "start", within_s=_SERVES_WITHIN_S * 3).strip()
        return f"restarted; {said}" if said else "restarted"
    shell.run("systemctl", "restart", UNIT, within_s=90)
    shell.run("systemctl", "is-active", UNIT)
    return "restarted"


def logs(lines: int) -> Callable[[Shell], str]:
    """Return a function that reads the last lines of an agent's log."""

    def act(shell: Shell) -> str:
        if shell.host.service == "script":
            return shell.run("tail", "-n", str(lines), f"{shell.host.home}/agent.log")
        return shell.run("journalctl", "--no-pager", "--output=short-iso", "-n", str(lines), "-u", UNIT)

    return act


class Examined(msgspec.Struct, frozen=True):
    """The output of a machine's doctor, as JSON."""

    worst: Severity
    findings: tuple[Finding, ...]


def exec_check(shell: Shell) -> Examined:
    """Run the doctor on a machine; raises `RemoteError` for an invalid output."""
    home = shell.host.home
    program = f"{home}/venv/bin/testbed"
    command = f"{shlex.quote(program)} doctor --json --folder {shlex.quote(home)}; test $? -le 2"
    text = shell.run("sh", "-c", command, within_s=180)
    try:
        return msgspec.json.decode(text, type=Examined)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        why = f"{error}: found {shown(text, 100)}: expected the JSON of `testbed doctor`"
        raise RemoteError(shell.host.name, "testbed doctor", why) from None


def cleanup(*, dry_run: bool, force: bool, only: str | None) -> Callable[[Shell], str]:
    """Return a function that removes leftovers of killed agents on a machine, and returns the lines about them."""

    def act(shell: Shell) -> str:
        options = [*(["--dry-run"] if dry_run else []), *(["--force"] if force else [])]
        options += ["--only", only] if only else []
        command = shlex.join([f"{shell.host.home}/venv/bin/testbed", "cleanup", *options])
        return shell.run("sh", "-c", f"{command}; test $? -le 1", within_s=_CLEANUP_S)  # 1: something was kept

    return act


def push_image(folder: Path) -> Callable[[Shell], str]:
    """Return a function that copies a local guest image, made by `testbed image build`, to a machine."""
    files = [folder / name for name in ("vmlinuz", "initramfs", "manifest.json")]  # the last one makes it complete
    if missing := [path.name for path in files if not path.is_file()]:
        raise UserError(f"{folder}: no guest image, as {', '.join(missing)} is not there: testbed image build")

    def act(shell: Shell) -> str:
        target = f"/var/cache/dfrs-testbed/guest-image/{folder.name}"
        shell.run("mkdir", "-p", target)
        for path in files:
            shell.put(path, f"{target}/{path.name}")
        shell.run("ln", "-sfn", folder.name, "/var/cache/dfrs-testbed/guest-image/current")
        return f"{len(files)} files, {sum(path.stat().st_size for path in files) >> 20} MiB"

    return act
