"""The machine of a nested Xen node: a QEMU process that resumes from a state saved by the first of its shape."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from testbed.bus.mosquitto import free_port
from testbed.errors import RunError
from testbed.host.interpreter import module_argv
from testbed.host.locks import locked
from testbed.lab.box.network import BRIDGE, hardware_address, is_port
from testbed.lab.box.parts import ProcessPart
from testbed.lab.box.processes import ProcessId, alive, end, last_line, mark, marked, wait_until
from testbed.lab.box.spec import BoxSpec, NodeSpec
from testbed.lab.box.state import Journal
from testbed.lab.box.xen.agent_disk import disk_of
from testbed.lab.box.xen.dom0 import Dom0
from testbed.lab.box.xen.hardware import Accelerator, Files, Shape, command_line, make_overlay
from testbed.lab.box.xen.image import XenImage, current
from testbed.lab.box.xen.monitor import Monitor
from testbed.lab.box.xen.saved import SavedState, accelerators, note_no_kvm

RUN_FOLDERS = ("xen",)
STORE_FOLDERS = ("log",)
_TAP = "xen0"
_ROLE = "machine"
_BOOT_WITHIN_S: dict[Accelerator, float] = {"kvm": 60.0, "tcg": 420.0}
_TRY_S = 10.0
_MONITOR_WITHIN_S = 20.0
_LOADED_WITHIN_S = 120.0
_ANSWER_WITHIN_S = 120.0


@dataclass(frozen=True, slots=True)
class XenMachine(ProcessPart):
    """The machine of one node. No data outlives the machine, as saved guests are on its own disk."""

    grace_s = 5.0
    spec: BoxSpec
    node: NodeSpec
    journal: Journal
    say: Callable[[str], None]

    @property
    def name(self) -> str:
        """See `Part.name`."""
        return f"machine {self.node.full_name}"

    def there(self) -> bool:
        """See `Part.there`."""
        return alive(self.process) and is_port(self.node.full_name, _TAP) and Dom0(self.node).answers()

    def make(self) -> None:
        """See `Part.make`."""
        self._end()
        image = current()
        with locked(image.folder / "lock"):  # only one of several machines of equal shape is booted and saved
            shape, state = self._saved(image)
        dom0 = Dom0(self.node)
        make_overlay(self._disk, state.disk, "qcow2")
        process = self._start(image, shape, self._disk, state)
        self._wait_running(process, _LOADED_WITHIN_S)
        if not wait_until(dom0.lets_in, _ANSWER_WITHIN_S):  # after a load, the network is not ready at once
            raise RunError(f"{self.name}: no ssh login is possible{last_line(self._console)}")
        dom0.become(hardware_address(self.node, inside=True))
        if not wait_until(dom0.answers, _ANSWER_WITHIN_S):
            raise RunError(f"{self.name}: its libvirtd does not answer{last_line(self._console)}")

    @property
    def _disk(self) -> Path:
        return self.node.store_dir / "disk.qcow2"

    @property
    def _console(self) -> Path:
        return self.node.store_dir / "log" / "console.log"

    @property
    def _monitor(self) -> Path:
        return self.node.run_dir / "xen" / "monitor"

    def _end(self) -> None:
        """End the machine's processes, recorded or not."""
        end([*filter(None, [self.process]), *marked(self.node.lab, self.node.name, _ROLE)], self.grace_s)

    def _saved(self, image: XenImage) -> tuple[Shape, SavedState]:
        """Return the shape and the state from which the machine can resume; a missing state is created."""
        failure = RunError(f"{self.name}: no accelerator")
        for accelerator in accelerators(image):
            shape = Shape.of(self.node, self.spec.xen_scheduler, accelerator)
            state = SavedState.of(image, shape)
            if state.there():
                return shape, state
            try:
                self._save(image, shape, state)
            except RunError as error:
                failure = error
                self._end()
                shutil.rmtree(state.folder)
                if accelerator == "kvm":
                    self.say(f"{self.name}: does not boot under KVM, and is emulated instead")
                    note_no_kvm(image)
            else:
                return shape, state
        raise failure

    def _save(self, image: XenImage, shape: Shape, state: SavedState) -> None:
        self.say(f"{self.name}: boots under {shape.accelerator} once, to save its state: a minute or two")
        shutil.rmtree(state.folder, ignore_errors=True)  # left by a killed command
        state.folder.mkdir()
        make_overlay(state.disk, image.disk, "raw")
        process = self._start(image, shape, state.disk, None)
        self._wait_running(process, _MONITOR_WITHIN_S)
        within_s = _BOOT_WITHIN_S[shape.accelerator]
        dom0 = Dom0(self.node)

        def over() -> bool:
            return not self._runs(process) or dom0.answers(_TRY_S)

        if not wait_until(over, within_s) or not self._runs(process):
            raise RunError(f"{self.name}: not up after {within_s:g} s{last_line(self._console)}")
        with Monitor(self._monitor) as monitor:
            monitor.save(state.memory)
        self._end()

    def _start(self, image: XenImage, shape: Shape, disk: Path, state: SavedState | None) -> ProcessId:
        self._monitor.unlink(missing_ok=True)
        port = free_port()
        Dom0(self.node).furnish(image, port)
        files = Files(disk, disk_of(self.node.lab), self._monitor, self._console)
        memory = None if state is None else state.memory
        return self.started(
            [
                *module_argv("testbed.lab.box.xen.launch", self.node.full_name, BRIDGE, _TAP),
                *command_line(shape, image, files, port, memory),
            ],
            mark(self.node.lab, self.node.name, _ROLE),
            self.node.store_dir / "log" / "machine.log",
        )

    def _wait_running(self, process: ProcessId, timeout_s: float) -> None:
        if not wait_until(lambda: self._runs(process) or not alive(process), timeout_s) or not alive(process):
            said = last_line(self.node.store_dir / "log" / "machine.log")
            raise RunError(f"{self.name}: {'not running' if alive(process) else 'it ended'}{said}")

    def _runs(self, process: ProcessId) -> bool:
        if not alive(process):
            return False
        try:
            with Monitor(self._monitor) as monitor:
                return monitor.go_on()
        except RunError:
            return False
