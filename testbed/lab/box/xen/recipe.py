"""Builds the files of a nested Xen node: hypervisor, kernel, initramfs, and the control domain's disk.

The build needs root rights. It is not reproducible, as each disk gets ssh keys of its own.
"""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Callable
from pathlib import Path

from testbed.errors import RunError, UserError
from testbed.lab.box.commands import program, run
from testbed.lab.box.xen.packages import Ingredients
from testbed.lab.guest_image import cpio
from testbed.lab.guest_image.recipe_debian import fetch, unpack

VERSION = 1  # of this recipe; increment it when the same packages and files give a different node
FILES = Path(__file__).with_name("dom0")
HOST_NAME = "xen-node"  # ssh's name for the host key, independent of the node's address and port
_TOOLS = ("apt-get", "mmdebstrap", "mke2fs", "chroot", "setpriv", "unshare", "ssh", "ssh-keygen", "zstd", "qemu-img",
          "qemu-system-x86_64")  # fmt: skip
_DISK_MIB = 6144  # sparse; saved guests are on it, too
_FIRST_MODULES = ("virtio_pci", "virtio_blk", "ext4", "crc32c_generic")
_MODULES = (
    *_FIRST_MODULES, "virtio_net", "bridge", "tun", "loop", "xenfs", "xen-evtchn", "xen-gntdev", "xen-gntalloc",
    "xen-privcmd", "xen-acpi-processor", "xen-netback", "xen-blkback",
)  # fmt: skip
_UNNEEDED = ("usr/share/doc", "usr/share/man", "usr/share/locale", "var/lib/apt/lists", "var/cache/apt")
_INSTALL_WITHIN_S = 900.0
_STEP_WITHIN_S = 300.0


def check_tools() -> None:
    """Raise `UserError` if a tool to build or run a nested Xen node is missing."""
    for name in _TOOLS:
        try:
            program(name)
        except UserError:
            raise UserError(
                f"xen node: no {name} here: expected it to be installed: ./scripts/debian-packages xen"
            ) from None


def make(ingredients: Ingredients, downloads: Path, scratch: Path, into: Path, say: Callable[[str], None]) -> None:
    """Build all files of a node in the folder `into`; `scratch` is an empty folder. Raises `RunError`."""
    say(f"xen node: {ingredients.hypervisor.name} {ingredients.hypervisor.version}, {ingredients.kernel.name}")
    hypervisor = unpack(fetch(ingredients.hypervisor, downloads), scratch / "hypervisor")
    kernel = unpack(fetch(ingredients.kernel, downloads), scratch / "kernel")
    (image,) = (hypervisor / "boot").glob("xen-*.gz")
    (into / "xen").write_bytes(gzip.decompress(image.read_bytes()))  # QEMU cannot load a compressed image
    (vmlinuz,) = (kernel / "boot").glob("vmlinuz-*")
    shutil.copyfile(vmlinuz, into / "vmlinuz")
    root = scratch / "root"
    say(f"xen node: a control domain of Debian {ingredients.release}: a minute or two")
    _install(ingredients, scratch, root)
    first = _add_modules(root, kernel / "lib/modules", vmlinuz.name.removeprefix("vmlinuz-"))
    (into / "initramfs").write_bytes(_initramfs(root, first))
    _furnish(root, into)
    say("xen node: its disk")
    disk = str(into / "dom0.img")
    features = (
        "-O",
        "^has_journal",
        "-E",
        "lazy_itable_init=1,root_owner=0:0",
    )  # no journal is needed, as the disk does not outlive a failure of its node
    run("mke2fs", "-q", "-F", "-t", "ext4", *features, "-d", str(root), disk, f"{_DISK_MIB}M", timeout_s=_STEP_WITHIN_S)


def _install(ingredients: Ingredients, scratch: Path, root: Path) -> None:
    sources = scratch / "sources.list"
    sources.write_text("".join(f"{line}\n" for line in ingredients.sources), encoding="utf-8")
    names = ",".join(package.name for package in ingredients.installed)
    # If this process is killed, no child may continue and no mount may stay, as the next build removes the folder. So
    # the command has PID and mount namespaces of its own, which end with their first process.
    run(
        *("setpriv", "--pdeathsig", "KILL", program("unshare"), "--pid", "--fork", "--kill-child", "--mount-proc"),
        *(program("mmdebstrap"), "--quiet", "--mode=root", "--variant=apt"),
        *('--aptopt=APT::Install-Recommends "false"', f"--include={names}"),
        *(ingredients.release, str(root), str(sources)),
        timeout_s=_INSTALL_WITHIN_S,
    )


def _add_modules(root: Path, modules: Path, version: str) -> list[Path]:
    """Copy the needed kernel modules (a thirtieth of all); return those that mount the disk, in load order."""
    target = root / "usr/lib/modules"
    shutil.copytree(modules, target, symlinks=True, dirs_exist_ok=True)
    run("chroot", str(root), "depmod", version, timeout_s=_STEP_WITHIN_S)
    needed = {path for name in _MODULES for path in _with_dependencies(root, version, name)}
    first = [path for name in _FIRST_MODULES for path in _with_dependencies(root, version, name)]
    for path in (target / version / "kernel").rglob("*.ko*"):
        if path not in needed:
            path.unlink()
    run("chroot", str(root), "depmod", version, timeout_s=_STEP_WITHIN_S)
    return list(dict.fromkeys(first))


def _with_dependencies(root: Path, version: str, name: str) -> list[Path]:
    told = run("chroot", str(root), "modprobe", "-S", version, "--show-depends", name)
    files = [line.split()[1] for line in told.splitlines() if line.startswith("insmod ")]
    return [root / "usr" / file.removeprefix("/").removeprefix("usr/") for file in files]


def _initramfs(root: Path, modules: list[Path]) -> bytes:
    order = "".join(f"{path.name}\n" for path in modules)
    folders = ("bin", "dev", "modules", "proc", "root")
    return cpio.archive(
        [
            *(cpio.folder(name) for name in folders),
            cpio.device("dev/console", 5, 1),
            cpio.file("init", (FILES / "initramfs-init").read_bytes(), 0o755),
            cpio.file("bin/busybox", (root / "usr/bin/busybox").read_bytes(), 0o755),
            cpio.file("modules/order", order.encode()),
            *(cpio.file(f"modules/{path.name}", path.read_bytes()) for path in modules),
        ]
    )


def _furnish(root: Path, into: Path) -> None:
    """Add our files to the root file system, remove unneeded ones, and write the ssh keys to `into`."""
    shutil.copyfile(FILES / "inittab", root / "etc/inittab")
    start = root / "usr/local/sbin/start-node"
    shutil.copyfile(FILES / "start-node", start)
    start.chmod(0o755)
    for folder in ("var/log/libvirt", "var/log/xen/console", "var/lib/libvirt", "opt/dfrs"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    quick = root / "etc/ssh/sshd_config.d/quick.conf"
    quick.write_text("UsePAM no\nUseDNS no\n", encoding="ascii")
    with (root / "etc/default/xen").open("a", encoding="utf-8") as settings:
        settings.write('XENCONSOLED_ARGS="--log=all --log-dir=/var/log/xen/console"\n')  # guests' output, in files
    with (root / "etc/libvirt/libvirtd.conf").open("a", encoding="utf-8") as settings:
        settings.write("max_client_requests = 64\n")  # else an agent's concurrent calls delay its keepalive
    script = root / "etc/xen/scripts/vif-dfrs"
    shutil.copyfile(FILES / "vif-dfrs", script)
    script.chmod(0o755)
    drivers = root / "usr/lib/x86_64-linux-gnu/libvirt/connection-driver"
    for name in ("qemu", "nwfilter"):  # libvirtd exits at once if the user of its QEMU driver does not exist
        (drivers / f"libvirt_driver_{name}.so").unlink(missing_ok=True)
    for name in _UNNEEDED:
        shutil.rmtree(root / name, ignore_errors=True)
    key = into / "key"
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", HOST_NAME, "-f", str(key))
    public = key.with_suffix(".pub")
    ssh = root / "root/.ssh"
    ssh.mkdir(mode=0o700, exist_ok=True)
    shutil.move(public, ssh / "authorized_keys")
    (ssh / "authorized_keys").chmod(0o600)
    host_key = root / "etc/ssh/ssh_host_ed25519_key.pub"
    if not host_key.exists():
        raise RunError(f"xen node: no {host_key}: expected openssh-server to have made it")
    (into / "known_hosts").write_text(f"{HOST_NAME} {host_key.read_text(encoding='ascii')}", encoding="ascii")
