"""Our domains as libvirt 9.0 writes them: the XML that QEMU's and Xen's drivers keep of a running domain."""

from __future__ import annotations

import struct

from testbed.bus.messages import GuestSpec, ProgramSpec

SPEC = GuestSpec(
    guest="dfrs-ab12-j3-t1", run="ab12", job=3, task=1, cpu_cores=0.5, memory_mib=200, address="10.77.1.5/16",
    lease="host:7/0123456789ab",
    program=ProgramSpec(name="patterns", work_units=9, units_per_iteration=3, seed=5, workers=2, rank=1, ranks=2),
)  # fmt: skip
WORDS = (
    "console=ttyS0 quiet panic=-1 no_timer_check mitigations=off random.trust_cpu=on dfrs.name=dfrs-ab12-j3-t1 "
    "dfrs.ip=10.77.1.5/16"
)
EMULATOR = "/usr/bin/qemu-system-x86_64"

# With the aliases, labels and paths of a running domain; a file has fewer of them.
QEMU = f"""<domain type='qemu' id='20'>
  <name>dfrs-ab12-j3-t1</name>
  <uuid>577ae7d9-35bf-48e0-a152-181ac112c09c</uuid>
  <metadata xmlns:dfrs="urn:dfrs-testbed:guest:1">
    <dfrs:guest run="ab12" job="3" task="1" node="alpha" address="10.77.1.5/16" lease="root@vm:4987/4409e6d7325c"/>
  </metadata>
  <memory unit='KiB'>204800</memory>
  <currentMemory unit='KiB'>204800</currentMemory>
  <vcpu placement='static'>2</vcpu>
  <cputune>
    <period>100000</period>
    <quota>8000</quota>
  </cputune>
  <resource>
    <partition>/dfrs-l-alpha</partition>
  </resource>
  <os>
    <type arch='x86_64' machine='pc-i440fx-7.2'>hvm</type>
    <kernel>/k/alpha/vmlinuz</kernel>
    <initrd>/k/alpha/initramfs</initrd>
    <cmdline>{WORDS}</cmdline>
    <boot dev='hd'/>
  </os>
  <features>
    <acpi/>
  </features>
  <cpu mode='custom' match='exact' check='full'>
    <model fallback='forbid'>qemu64</model>
    <feature policy='require' name='hypervisor'/>
    <feature policy='require' name='lahf_lm'/>
  </cpu>
  <clock offset='utc'/>
  <on_poweroff>destroy</on_poweroff>
  <on_reboot>destroy</on_reboot>
  <on_crash>destroy</on_crash>
  <devices>
    <emulator>{EMULATOR}</emulator>
    <controller type='usb' index='0' model='none'>
      <alias name='usb'/>
    </controller>
    <controller type='pci' index='0' model='pci-root'>
      <alias name='pci.0'/>
    </controller>
    <controller type='virtio-serial' index='0'>
      <alias name='virtio-serial0'/>
      <address type='pci' domain='0x0000' bus='0x00' slot='0x03' function='0x0'/>
    </controller>
    <interface type='bridge'>
      <mac address='52:54:0a:4d:01:05'/>
      <source bridge='dfrs0'/>
      <target dev='vnet17'/>
      <model type='virtio'/>
      <alias name='net0'/>
      <address type='pci' domain='0x0000' bus='0x00' slot='0x02' function='0x0'/>
    </interface>
    <serial type='file'>
      <source path='/var/log/libvirt/qemu/dfrs-ab12-j3-t1.console'/>
      <target type='isa-serial' port='0'>
        <model name='isa-serial'/>
      </target>
      <alias name='serial0'/>
    </serial>
    <console type='file'>
      <source path='/var/log/libvirt/qemu/dfrs-ab12-j3-t1.console'/>
      <target type='serial' port='0'/>
      <alias name='serial0'/>
    </console>
    <channel type='unix'>
      <source mode='bind' path='/var/lib/libvirt/qemu/channel/target/domain-20-dfrs-ab12-j3-t1/dfrs.ctl'/>
      <target type='virtio' name='dfrs.ctl' state='connected'/>
      <alias name='channel0'/>
      <address type='virtio-serial' controller='0' bus='0' port='1'/>
    </channel>
    <input type='mouse' bus='ps2'>
      <alias name='input0'/>
    </input>
    <input type='keyboard' bus='ps2'>
      <alias name='input1'/>
    </input>
    <audio id='1' type='none'/>
    <memballoon model='none'/>
  </devices>
  <seclabel type='dynamic' model='dac' relabel='yes'>
    <label>+0:+0</label>
    <imagelabel>+0:+0</imagelabel>
  </seclabel>
</domain>
"""

# The cookie that libvirt keeps beside the domain in a file.
COOKIE = """<cookie>
  <cpu mode='custom' match='exact' check='full'>
    <model fallback='forbid'>qemu64</model>
    <feature policy='require' name='hypervisor'/>
    <feature policy='require' name='lahf_lm'/>
  </cpu>
  <slirpHelper/>
</cookie>
"""

XEN = """<domain type='xen' id='4'>
  <name>dfrs-ab12-j3-t1</name>
  <uuid>577ae7d9-35bf-48e0-a152-181ac112c09c</uuid>
  <metadata>
    <dfrs:guest xmlns:dfrs="urn:dfrs-testbed:guest:1" run="ab12" job="3" task="1" node="alpha" address="10.77.1.5/16"
      lease="root@vm:4987/4409e6d7325c"/>
  </metadata>
  <memory unit='KiB'>204800</memory>
  <currentMemory unit='KiB'>204800</currentMemory>
  <vcpu placement='static'>2</vcpu>
  <os>
    <type arch='x86_64' machine='xenpv'>linux</type>
    <kernel>/k/vmlinux</kernel>
    <initrd>/k/initramfs</initrd>
    <cmdline>{words}</cmdline>
  </os>
  <clock offset='utc' adjustment='reset'/>
  <on_poweroff>destroy</on_poweroff>
  <on_reboot>destroy</on_reboot>
  <on_crash>destroy</on_crash>
  <devices>
    <controller type='xenbus' index='0'/>
    <interface type='bridge'>
      <mac address='52:54:0a:4d:01:05'/>
      <source bridge='xenbr0'/>
      <target dev='vif4.0'/>
    </interface>
    <console type='pty' tty='/dev/pts/3'>
      <source path='/dev/pts/3'/>
      <target type='xen' port='0'/>
    </console>
    <input type='mouse' bus='xen'/>
    <input type='keyboard' bus='xen'/>
    <memballoon model='xen'/>
  </devices>
</domain>
""".replace("{words}", WORDS.replace("ttyS0", "hvc0"))

# Domains that a compromised node can write into a file: by name, the text that is replaced, and its replacement.
_END = "  </devices>"
_QEMU = "xmlns:q='http://libvirt.org/schemas/domain/qemu/1.0'"
DEVICES = {
    "disk": "<disk type='block' device='disk'><source dev='/dev/sda'/><target dev='vda' bus='virtio'/></disk>",
    "file": "<disk type='file'><source file='/etc/shadow'/><target dev='vda'/></disk>",
    "filesystem": "<filesystem type='mount'><source dir='/'/><target dir='root'/></filesystem>",
    "hostdev": "<hostdev mode='subsystem' type='pci'><source><address bus='0x01'/></source></hostdev>",
    "second-card": "<interface type='bridge'><source bridge='dfrs0'/></interface>",
    "direct": "<interface type='direct'><source dev='eth0' mode='bridge'/></interface>",
    "serial": "<serial type='file'><source path='/root/.ssh/authorized_keys'/><target port='1'/></serial>",
    "console": "<console type='file'><source path='/etc/cron.d/x'/><target type='serial' port='0'/></console>",
    "terminal": "<console type='dev'><source path='/dev/sda'/></console>",
    "parallel": "<parallel type='dev'><source path='/dev/mem'/></parallel>",
    "channel": "<channel type='unix'><source mode='connect' path='/run/docker.sock'/></channel>",
    "rng": "<rng model='virtio'><backend model='random'>/dev/sda</backend></rng>",
    "tpm": "<tpm model='tpm-tis'><backend type='passthrough'><device path='/dev/tpm0'/></backend></tpm>",
    "shmem": "<shmem name='x'><model type='ivshmem-plain'/></shmem>",
    "graphics": "<graphics type='vnc' port='5900' listen='0.0.0.0'/>",
    "audio": "<audio id='2' type='file' path='/etc/passwd'/>",
    "another-emulator": "<emulator>/opt/pwn.sh</emulator>",
    "panic": "<panic model='isa'/>",
}
ATTACKS: dict[str, tuple[str, str]] = {
    **{name: (_END, f"{device}\n{_END}") for name, device in DEVICES.items()},
    "second-devices": ("</domain>", f"<devices>{DEVICES['disk']}</devices></domain>"),
    "second-os": ("</domain>", "<os><loader>/opt/x</loader></os></domain>"),
    "commandline": (
        "</domain>",
        f"<q:commandline {_QEMU}><q:arg value='-chardev'/><q:arg value='file,path=/x,id=x'/></q:commandline></domain>",
    ),
    "override": (
        "</domain>",
        f"<q:override {_QEMU}><q:device alias='net0'/></q:override></domain>",
    ),
    "loader": ("</os>", "<loader type='pflash'>/opt/x.fd</loader></os>"),
    "nvram": ("</os>", "<nvram>/etc/shadow</nvram></os>"),
    "dtb": ("</os>", "<dtb>/etc/shadow</dtb></os>"),
    "firmware": ("<os>", "<os firmware='efi'>"),
    "words": ("random.trust_cpu=on ", "random.trust_cpu=on init=/bin/sh ") ,
    "name": ("<name>dfrs-ab12-j3-t1<", "<name>web<"),
    "blank-before-name": ("<name>dfrs-ab12-j3-t1<", "<name> dfrs-ab12-j3-t1<"),
    "line-after-name": ("<name>dfrs-ab12-j3-t1<", "<name>dfrs-ab12-j3-t1\n<"),
    "no-break-space-after-name": ("<name>dfrs-ab12-j3-t1<", "<name>dfrs-ab12-j3-t1\u00a0<"),
    "wide-space-after-name": ("<name>dfrs-ab12-j3-t1<", "<name>dfrs-ab12-j3-t1&#x2003;<"),
    "tabulator-after-name": ("<name>dfrs-ab12-j3-t1<", "<name>dfrs-ab12-j3-t1&#9;<"),
    "blank-after-words": ("dfrs.ip=10.77.1.5/16<", "dfrs.ip=10.77.1.5/16 <"),
    "billion-bridges": (_END, f"<controller type='pci' model='pci-root' index='1000000000'/>{_END}"),
    "billion-ports": (_END, f"<controller type='virtio-serial' index='1' ports='1000000000'/>{_END}"),
    "job": ('job="3"', 'job="4"'),
    "another-owner": ("</metadata>", "<x:y xmlns:x='urn:z'/></metadata>"),
    "memory": (">204800</memory>", ">99999999</memory>"),
    "more-memory-now": (">204800</currentMemory>", ">1</currentMemory>"),
    "max-memory": ("<currentMemory", "<maxMemory slots='2' unit='GiB'>64</maxMemory><currentMemory"),
    "vcpus": (">2</vcpu>", ">64</vcpu>"),
    "hugepages": ("<os>", "<memoryBacking><source type='file'/></memoryBacking><os>"),
    "mac": ("52:54:0a:4d:01:05", "52:54:0a:4d:01:06"),
    "card-script": ("<source bridge", "<script path='/opt/pwn.sh'/><source bridge"),
    "kind-of-card": ("<interface type='bridge'>", "<interface type='ethernet'>"),
    "end": ("<on_crash>destroy<", "<on_crash>coredump-destroy<"),
    "type": ("<domain type='", "<domain type='x"),
    "entities": ("<domain ", "<!DOCTYPE d [<!ENTITY a 'b'>]><domain "),
    "label": ("</domain>", "<seclabel type='static'><label>../x y</label></seclabel></domain>"),
    "keywrap": ("</domain>", "<launchSecurity type='sev'/></domain>"),
}  # fmt: skip


def attacked(xml: str, name: str) -> str:
    """Return a domain with an attack in it."""
    before, after = ATTACKS[name]
    assert before in xml
    return xml.replace(before, after, 1)


def qemu_file(xml: str, cookie: str) -> bytes:
    """Return a file as libvirt's QEMU driver writes it: both texts end with a zero, and 64 KiB stay free."""
    domain, beside = xml.encode() + b"\0", cookie.encode() + b"\0" if cookie else b""
    texts = domain + beside + bytes(1 << 16)
    header = (b"LibvirtQemudSave", 2, len(texts), 0, 0, len(domain) if cookie else 0)
    return struct.pack("<16sIIIII56x", *header) + texts + b"QEVM memory"
