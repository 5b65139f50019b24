"""The domain of a restored guest: always our own, independent of the domain in its image.

An image carries the domain that it was saved from, and its author can write anything: another emulator, disks of the
node, arguments for QEMU's command line. So a node creates the domain again from the command and compares every fact of
the file's domain with it: each element, each text and each attribute. `_ADDED` lists the additions of libvirt to all
our domains, `_PLACE` the facts that differ per node. The image is refused at the first other difference.
"""

from __future__ import annotations

import copy
import re
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator, Mapping

from node_agent.drivers.protocol import SuspectError
from node_agent.drivers.virt.domain import METADATA
from testbed.errors import shown

_MOST_ELEMENTS, _MOST_DEPTH = 500, 16  # our domains have 80 elements, 5 deep
_SHOWN_CHARS = 100
_BLANK = " \t\r\n"  # what may be between elements
_KIB = {"KiB": 1, "MiB": 1 << 10, "GiB": 1 << 20}
_GUEST = re.escape(f"{{{METADATA}}}guest")
_WORD = r"[A-Za-z0-9][A-Za-z0-9_.,+-]{0,63}"
_NUMBER = r"-?(0x)?[0-9a-fA-F]{1,20}"
_SMALL = r"(0x)?[0-9a-fA-F]{1,4}"  # libvirt allocates as many buses and ports as device numbers imply
_SWITCH = r"on|off|yes|no"
_TEXT = r"[^\n]{0,4096}"

# Facts that differ per start or node: their paths, and the form of a value. Ours replace the file's.
_LIFE: Mapping[str, str] = {f"metadata/{_GUEST}@(node|lease)": _TEXT}
_PLACE: Mapping[str, str] = {
    "resource": "", "resource/partition": _TEXT, "devices/interface/source@bridge": _TEXT, "vcpu@cpuset": _TEXT,
    "os/kernel|os/initrd": _TEXT,
}  # fmt: skip
# Our facts that libvirt expands: the name of a machine without its version, and the model of the processor.
_WRITTEN_OUT: Mapping[str, str] = {"os/type@machine": r"pc(-i440fx-[A-Za-z0-9.-]{1,40})?", "cpu@mode": _WORD}
# Libvirt's additions to our domains. None of them names a file, a device or a program of the node.
_ADDED: Mapping[str, str] = {
    "@id": _NUMBER,
    "uuid": r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
    "vcpu@placement": "static",
    "cputune": "", "cputune/(period|quota|shares|(global|emulator)_(period|quota))": _NUMBER,
    "os/boot": "", "os/boot@dev": "hd|fd|cdrom|network",
    "features": "", "features/(acpi|apic|pae|vmport)": "", "features/vmport@state": _SWITCH,
    "cpu": "", "cpu@(mode|match|check|migratable)": _WORD,
    "cpu/model|cpu/vendor": _WORD, "cpu/model@fallback": "allow|forbid",
    "cpu/(feature|topology|maxphysaddr)": "", "cpu/(feature|topology|maxphysaddr)@[a-z]+": _WORD,
    "clock": "", "clock@(offset|adjustment|basis)": "utc|variable|reset|-?[0-9]{1,12}",
    "pm": "", "pm/(suspend-to-mem|suspend-to-disk)": "", "pm/(suspend-to-mem|suspend-to-disk)@enabled": _SWITCH,
    "devices/[a-z]+/alias": "", "devices/[a-z]+/alias@name": _WORD,
    "devices/[a-z]+/address": "", "devices/[a-z]+/address@type": "pci|virtio-serial|isa|usb|xenbus",
    "devices/[a-z]+/address@(domain|bus|slot|function|controller|port)": _SMALL,
    "devices/[a-z]+/address@multifunction": _SWITCH,
    "devices/controller": "", "devices/controller@type": "pci|virtio-serial|usb|ide|xenbus",
    "devices/controller@model": "pci-root|none|piix3-uhci",
    "devices/controller@index": "[0-9]{1,2}", "devices/controller@(ports|vectors)": "[0-9]{1,3}",
    "devices/controller@(maxGrantFrames|maxEventChannels)": "[0-9]{1,6}",
    "devices/interface/target": "", "devices/interface/target@dev": r"(vnet|vif)[0-9]{1,7}(\.[0-9]{1,3})?(-emu)?",
    "devices/interface/model": "", "devices/interface/model@type": "netfront",
    "devices/serial/source@append": _SWITCH,
    "devices/serial/target@type": "isa-serial",
    "devices/serial/target/model": "", "devices/serial/target/model@name": "isa-serial",
    "devices/channel/source@path": r"/(var/lib|run)/libvirt/qemu/channel/(target/)?[A-Za-z0-9-]+/[A-Za-z0-9.-]+",
    "devices/channel/target@state": "connected|disconnected",
    "devices/input": "", "devices/input@type": "mouse|keyboard", "devices/input@bus": "ps2|xen",
    "devices/audio": "", "devices/audio@id": _NUMBER, "devices/audio@type": "none",
    "devices/memballoon": "", "devices/memballoon@model": "none|xen",
    "seclabel": "", "seclabel@(type|model|relabel)": _WORD,
    "seclabel/(label|imagelabel|baselabel)": "[A-Za-z0-9+:,_.-]{0,200}",
}  # fmt: skip
# Facts that libvirt leaves out of a file: the socket, as its path is created again.
_LEFT_OUT = "devices/channel/source(@mode)?"
# Elements that libvirt creates again at each start; they are removed.
_MADE_ANEW = ("cputune", "seclabel", "devices/*/alias", "devices/interface/target")
Fact = tuple[str, str]


def parsed(xml: str) -> ET.Element:
    """Return the domain in a file; raises `SuspectError` if it is no domain, or larger than libvirt would write."""
    return _parsed(xml, "domain")


def check_cookie(xml: str) -> None:
    """Raise `SuspectError` unless the text that libvirt keeps beside a domain describes only its processor."""
    if not xml:
        return
    for path, value in _facts(_parsed(xml, "cookie")):
        ours = path in ("", "slirpHelper") or path.split("@")[0].split("/")[0] == "cpu"
        if not ours or not _fits((path, value), {**_ADDED, "": "", "slirpHelper": ""}):
            raise SuspectError(f"its cookie has {path} = {shown(value, _SHOWN_CHARS)}: expected a processor")


def _parsed(xml: str, tag: str) -> ET.Element:
    """Return the root of a text that libvirt and this parser read alike: only elements and ASCII, few and not deep."""
    if strange := re.search("<[!?]", xml):  # declarations, entities, comments; libvirt writes none
        raise SuspectError(f"its {tag} has {strange[0]!r}: expected elements alone")
    if (marks := xml.count("<")) > 2 * _MOST_ELEMENTS:
        raise SuspectError(f"its {tag} has {marks} marks of elements: expected {2 * _MOST_ELEMENTS} at most")
    try:
        root = ET.fromstring(xml)  # noqa: S314  # without a document type, so without entities
    except ET.ParseError as error:
        raise SuspectError(f"its {tag} cannot be read: {error}") from error
    if root.tag != tag:
        raise SuspectError(f"it holds a {shown(root.tag, _SHOWN_CHARS)}: expected a {tag}")
    level, depth = [root], 0
    while level:
        depth += 1
        if depth > _MOST_DEPTH:
            raise SuspectError(f"its {tag} has elements more than {_MOST_DEPTH} deep")
        level = [child for element in level for child in element]
    for text in _texts(root):
        if not text.isascii():
            raise SuspectError(f"its {tag} has {shown(text, _SHOWN_CHARS)}: expected ASCII")
    return root


def _texts(root: ET.Element) -> Iterator[str]:
    for element in root.iter():
        yield from (element.tag, element.text or "", element.tail or "", *element.keys(), *element.attrib.values())


def check_same(own: ET.Element, found: ET.Element, emulator: str, *, elsewhere: bool) -> None:
    """Raise `DriverError` that names the first fact in which a file's domain differs from our own.

    `emulator` is the form of the hypervisor's program here. With `elsewhere` the file may be from another node, whose
    own settings are replaced; else these must be equal, too.
    """
    ours, theirs = list(_facts(own)), list(_facts(found))
    free = {**_LIFE, **(_PLACE if elsewhere else {}), **_WRITTEN_OUT}
    allowed = {**_ADDED, **free, "devices/emulator": emulator, **_beside(own)}
    if not elsewhere:
        allowed = {path: form for path, form in allowed.items() if not path.startswith("seclabel")}
    left = Counter(ours)
    for fact in theirs:
        if left[fact] > 0:
            left[fact] -= 1
        elif not _fits(fact, allowed):
            path, value = fact
            values = sorted({value for place, value in ours if place == path})
            expected = " or ".join(repr(value) for value in values) or "nothing there"
            raise SuspectError(f"its domain has {path} = {shown(value, _SHOWN_CHARS)}: expected {expected}")
    for (path, value), count in left.items():
        if count > 0 and not any(re.fullmatch(form, path) for form in (*free, _LEFT_OUT)):
            raise SuspectError(f"its domain has no {path} = {shown(value, _SHOWN_CHARS)}, which our own has")


def own_again(own: ET.Element, found: ET.Element) -> str:
    """Return the XML of a domain that passed the check, with this node's own settings, to be restored here.

    The guest's hardware stays the same: libvirt numbers devices by itself, and might do so in another way.
    """
    root = copy.deepcopy(found)
    for pattern in _MADE_ANEW:
        parent, _, tag = pattern.rpartition("/")
        for place in root.findall(parent) if parent else [root]:
            for element in place.findall(tag):
                place.remove(element)
    for path in ("metadata", "resource"):
        for element in root.findall(path):
            root.remove(element)
        root.extend(copy.deepcopy(element) for element in own.findall(path))
    for path in ("os/kernel", "os/initrd"):
        _the(root, path).text = own.findtext(path)
    for path in ("devices/interface", "devices/channel"):
        for element, ours in zip(root.findall(path), own.findall(path), strict=True):
            for source in element.findall("source"):
                element.remove(source)
            element.extend(copy.deepcopy(source) for source in ours.findall("source"))
    placement = {name: value for name, value in _the(root, "vcpu").attrib.items() if name == "placement"}
    _the(root, "vcpu").attrib = {**placement, **_the(own, "vcpu").attrib}
    return ET.tostring(root, encoding="unicode")


def _the(root: ET.Element, path: str) -> ET.Element:
    element = root.find(path)
    if element is None:
        raise SuspectError(f"its domain has no {path}, which our own has")
    return element


def _facts(root: ET.Element) -> Iterator[Fact]:
    """Yield the facts of a domain in their order; memory is in KiB, as libvirt writes it."""

    def walk(element: ET.Element, path: str) -> Iterator[Fact]:
        text, attributes = element.text or "", dict(element.attrib)
        if len(element) or not text.strip(_BLANK):  # else each character counts, as it does for libvirt
            text = "".join([text, *(inner.tail or "" for inner in element)]).strip(_BLANK)
        if path in ("memory", "currentMemory"):
            text = _kib(text, attributes.pop("unit", "KiB"))
        yield path, text
        for name, value in attributes.items():
            yield f"{path}@{name}", value
        for inner in element:
            yield from walk(inner, f"{path}/{inner.tag}".lstrip("/"))

    return walk(root, "")


def _kib(text: str, unit: str) -> str:
    if not text.isascii() or not text.isdecimal() or len(text) > 15 or unit not in _KIB:
        return f"{text} {unit}"
    return str(int(text) * _KIB[unit])


def _beside(own: ET.Element) -> Mapping[str, str]:
    """Return libvirt's additions that repeat our own facts: the current memory, a console beside a serial port."""
    memory = next(value for path, value in _facts(own) if path == "memory")
    beside = {"currentMemory": re.escape(memory)}
    log = own.find("devices/serial/source")
    if log is None:  # then the console is a terminal, which changes with every start
        beside |= {
            "devices/console/source": "",
            "devices/console@tty|devices/console/source@path": "/dev/pts/[0-9]{1,6}",
        }
    else:
        beside |= {
            "devices/console": "", "devices/console@type": "file",
            "devices/console/source": "", "devices/console/source@path": re.escape(log.attrib["path"]),
            "devices/console/target": "", "devices/console/target@type": "serial", "devices/console/target@port": "0",
        }  # fmt: skip
    return beside


def _fits(fact: Fact, allowed: Mapping[str, str]) -> bool:
    path, value = fact
    return any(re.fullmatch(place, path) and re.fullmatch(form, value) for place, form in allowed.items())
