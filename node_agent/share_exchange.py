"""The exchange of shares at this node: periods, state on disk, and messages.

One asyncio task processes all jobs, one after the other. Messages are sent at most once; those without an answer are
repeated in the next period. The bookings of an account are on the disk before a message leaves, so that shares are
neither lost nor created when the agent is killed. The files need not survive a reboot, as no guest does.

For guests without weights the shares are caps (`Exchange.capped`), and a cap that a command sets is the base of a new
life of the exchange. Then all guests of the node count, also those that exchange nothing (`testbed.shares.in_force`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from node_agent.drivers.protocol import DriverError
from testbed.bus import topics
from testbed.bus.messages import Exchange, GuestSpec
from testbed.bus.protocol import Bus
from testbed.bus.telemetry import MOST_GIVERS, BankSample, ExchangeCounts, GuestSample
from testbed.errors import TestbedError
from testbed.host.whole_files import write_whole
from testbed.shares.account import Account
from testbed.shares.formulas import cores_of, shares_of
from testbed.shares.in_force import in_force
from testbed.shares.messages import ExchangeMessage, Receipt, SealError, Shortage, seal, unseal
from testbed.shares.node import BANK, NodeExchange, Use
from testbed.shares.state import AccountState
from testbed.shares.waits import upstream_ranks

FOLDER = "shares"
_MOST_WAITING = 1024  # received messages that are not processed yet: further ones are dropped, as on any network
_log = logging.getLogger(__name__)


class Kept(msgspec.Struct):
    """The state of a job on disk: its order, its shares, the number of periods begun, its accounts at this node."""

    order: Exchange
    total: int  # shares of the job
    number: int = 0
    accounts: dict[str, AccountState] = {}
    bases: dict[str, int] = {}  # of capped guests: the shares that the last command set


class _Job:
    """A job with guests at this node."""

    def __init__(self, kept: Kept, path: Path, now_s: float) -> None:
        self.kept = kept
        self.path = path
        self.written = b""  # the content of the file on disk
        self.secret = bytes.fromhex(kept.order.secret)
        self.node = self._open()
        self.next_s = now_s + kept.order.period_s
        self.grant_s = math.inf  # of the bank: when it is to grant next, known from the first report on
        self.read: dict[str, tuple[float, GuestSample]] = {}  # time and content of the last sample, by guest
        self.guessed: set[str] = set()  # guests whose waits are guessed

    def add(self, guest: str, shares: int) -> None:
        """Open the account of a guest."""
        self.kept.accounts.setdefault(guest, AccountState(shares))
        self.node = self._open()

    def _open(self) -> NodeExchange:
        kept = self.kept
        return NodeExchange(kept.accounts, banked=kept.order.mode == "bank", total=kept.total, capped=kept.order.capped)

    def hear(self, message: ExchangeMessage, free: int, now_s: float) -> list[ExchangeMessage]:
        """Handle a message; with the first report of a guest, after its first period, the periods of the bank begin."""
        if isinstance(message, Shortage) and math.isinf(self.grant_s):
            self.grant_s = now_s + max(self.kept.order.grant_s - self.kept.order.period_s, 0.0)
        return self.node.hear(message, free)

    @property
    def grants_by_s(self) -> float:
        """When the bank grants even if not all guests have reported: half a period late."""
        return self.grant_s + self.kept.order.period_s / 2

    def granted(self, now_s: float, *, late: bool = False) -> list[ExchangeMessage]:
        """Return the grants of the bank, if they are due and all guests of the job have reported, or if it is `late`.

        Reports of a period arrive one after the other; a grant before the last of them would be one for a part of the
        guests, or would wait for the next period.
        """
        due = now_s >= self.grant_s - self.kept.order.period_s / 2
        if not (late or (due and self.node.has_heard(self.kept.order.nodes))):
            return []
        period_s = self.kept.order.grant_s
        self.grant_s = max(self.grant_s + period_s, now_s) if late else now_s + period_s
        return self.node.grant()

    def notice(self, samples: Iterable[GuestSample], now_s: float) -> None:
        """Let guests take part from their first work unit on: before its job begins, a guest has no shares to spare.

        The first period begins with the first of them. So guests on different nodes exchange at about the same time.
        """
        for sample in samples:
            if sample.guest not in self.kept.accounts or not sample.units_done or sample.guest in self.read:
                continue
            if not self.read:
                self.next_s = now_s + self.kept.order.period_s
            self.read[sample.guest] = (now_s, sample)

    def uses(self, samples: Sequence[GuestSample], now_s: float) -> dict[str, Use]:
        """Return what each guest used per second since the last call, in shares.

        A guest that began to work less than half of a period ago is left out: that is too short to measure its use.
        """
        self.notice(samples, now_s)
        found = {}
        for sample in samples:
            if sample.guest not in self.read:
                continue
            at_s, before = self.read[sample.guest]
            if now_s - at_s < self.kept.order.period_s / 2:
                continue
            used = shares_of(max(sample.cpu_s - before.cpu_s, 0.0) / (now_s - at_s))
            waits_s, earlier_s = (each.waits_s or each.guessed_waits_s for each in (sample, before))
            found[sample.guest] = Use(used, self._upstreams(earlier_s, waits_s, now_s - at_s))
            self.read[sample.guest] = (now_s, sample)
        return found

    def _upstreams(self, before_s: Sequence[float], after_s: Sequence[float], period_s: float) -> list[str]:
        """Return the guests for whose messages a rank has waited, from its waits by rank."""
        guests = list(self.kept.order.nodes)
        return [guests[rank] for rank in upstream_ranks(before_s, after_s, period_s) if rank < len(guests)]


class ShareExchange:
    """Exchanges the shares of all jobs with guests at this node.

    `samples` returns the usage of the guests as it is now. `set_share` sets the share of a guest, in cores, `set_cap`
    its cap. `guess` is set where ranks do not count their waits: it begins to guess the waits of a guest, from the
    addresses of its job's guests.
    """

    def __init__(
        self, lab: str, node: str, cores: float, state_dir: Path, now_s: Callable[[], float],
        samples: Callable[[], Awaitable[Sequence[GuestSample]]], set_share: Callable[[str, float], Awaitable[object]],
        set_cap: Callable[[str, float], Awaitable[object]] | None = None,
    ) -> None:  # fmt: skip
        self._lab, self._node, self._cores = lab, node, shares_of(cores)
        self._folder = state_dir / FOLDER
        self._now_s = now_s
        self._samples, self._set_share, self._set_cap = samples, set_share, set_cap
        self.guess: Callable[[str, Sequence[str]], Awaitable[None]] | None = None
        self._booked: dict[str, int] = {}  # the shares in force of all guests
        self._bases: dict[str, int] = {}  # of capped guests
        self._unset: set[str] = set()  # capped guests whose caps are to be set
        self._last: dict[str, int] = {}  # the shares and the caps that were set here last
        self._jobs: dict[str, _Job] = {}  # by the alphabetically first name of its guests, which names its file
        self._heard: asyncio.Queue[bytes] = asyncio.Queue(_MOST_WAITING)
        self._sent = self._received = 0  # messages, to and from other nodes
        self._exchanges = False  # whether there has ever been a job that exchanges shares

    def begin(self, spec: GuestSpec, order: Exchange | None, cap_cores: float = 0.0) -> None:
        """Book the share of a new guest, or its cap, and let it exchange shares; raises `DriverError`."""
        first = shares_of(cap_cores if spec.share_cores is None else spec.share_cores)
        if spec.share_cores is None:
            self._bases[spec.guest] = first
        self._last.pop(spec.guest, None)
        self._booked[spec.guest] = first
        if order is not None:
            self._open(spec.guest, order, first)

    def _open(self, guest: str, order: Exchange, first: int) -> None:
        """Open the account of a guest; the first guest of a job at this node also opens the job."""
        if order.nodes.get(guest) != self._node:
            raise DriverError(f"guest {guest}: its exchange names another node: expected {self._node}")
        if order.capped != (guest in self._bases):
            raise DriverError(f"guest {guest}: expected an exchange of {'caps' if guest in self._bases else 'weights'}")
        name = min(order.nodes)
        job = self._jobs.get(name)
        if job is None or job.kept.order != order:  # a job of an earlier life has another order
            accounts = {BANK: AccountState(0)} if order.mode == "bank" and order.bank == self._node else {}
            path = self._folder / f"{name}.json"
            job = self._jobs[name] = _Job(Kept(order, first * len(order.nodes), 0, accounts), path, self._now_s())
            self._exchanges = True
        if guest in self._bases:
            job.kept.bases[guest] = first
        job.add(guest, first)
        try:  # at once: an agent that is killed before its first period ends would leave no account
            self._folder.mkdir(exist_ok=True)
            self._keep(job)
        except OSError as error:
            raise DriverError(f"guest {guest}: its shares cannot be kept: {job.path}: {error.strerror}") from error

    def _keep(self, job: _Job) -> None:
        text = msgspec.json.encode(job.kept)
        if text != job.written:
            write_whole(job.path, text, mode=0o600, durable=False)
            job.written = text

    async def rebase(self, caps: Mapping[str, float], order: Exchange | None, *, lower: bool) -> dict[str, float]:
        """Take new caps, in cores, for capped guests: return the caps to set.

        Earlier exchanges of these guests are void. The caps of other guests here that exceed their bases are lowered
        first. With `lower` no cap is raised. Raises `DriverError`.
        """
        found = dict(caps)
        for guest in sorted(caps.keys() & self._bases.keys()):
            base = shares_of(caps[guest])
            if lower and self._booked[guest] < base:
                base, found[guest] = self._booked[guest], cores_of(self._booked[guest])
            for name, job in list(self._jobs.items()):
                if guest in job.kept.accounts and job.kept.order != order:
                    del self._jobs[name]
                    job.path.unlink(missing_ok=True)
            self._bases[guest] = self._booked[guest] = base
            if order is not None:
                self._open(guest, order, base)
        self._recount()
        self._unset -= caps.keys()  # they are about to be set
        await self._enforce()
        return found

    def _recount(self) -> None:
        """Compute the caps that follow from accounts and bases."""
        accounts = dict(self._bases)
        for job in self._jobs.values():
            accounts.update({guest: shares for guest, shares in job.node.shares().items() if guest in accounts})
        weighed = sum(shares for guest, shares in self._booked.items() if guest not in self._bases)
        found = in_force(accounts, self._bases, self._cores - weighed)
        self._unset |= {guest for guest, shares in found.items() if shares != self._booked[guest]}
        self._booked.update(found)

    async def _enforce(self) -> None:
        """Set the caps that have changed, lower ones first."""
        self._unset &= self._bases.keys()
        for guest in sorted(self._unset, key=lambda guest: self._booked[guest] - self._last.get(guest, 0)):
            shares = self._booked.get(guest)
            if shares is None or self._set_cap is None:
                continue
            with contextlib.suppress(TestbedError):  # it is ending, or busy: the cap is set in the next period
                await self._set_cap(guest, cores_of(shares))
                self._last[guest] = shares
                if self._booked.get(guest) == shares:
                    self._unset.discard(guest)

    def take_over(self, specs: Sequence[GuestSpec], caps_cores: Mapping[str, float] | None = None) -> None:
        """Continue the accounts of guests of an earlier agent; delete those of guests that are not here.

        `caps_cores` are the caps of the capped ones.
        """
        names = {spec.guest for spec in specs}
        for spec in specs:
            found = spec.share_cores if spec.share_cores is not None else (caps_cores or {}).get(spec.guest, 0.0)
            self._booked[spec.guest] = shares_of(found)
            if spec.share_cores is None:
                self._bases[spec.guest] = shares_of(found)
        for path in sorted(self._folder.glob("*.json")):
            kept = _read(path)
            if kept is None or not names & kept.accounts.keys():
                path.unlink(missing_ok=True)
                continue
            job = self._jobs[path.stem] = _Job(kept, path, self._now_s())
            self._exchanges = True
            self._bases.update({guest: base for guest, base in kept.bases.items() if guest in self._bases})
            self._book(job)
            self._unset |= kept.bases.keys() & names

    def gone(self, guest: str) -> None:
        """Forget a guest that has left; with the last guest of a job here, delete its accounts and its bank."""
        self._bases.pop(guest, None)
        self._last.pop(guest, None)
        if self._booked.pop(guest, None) is None:
            return
        for name, job in list(self._jobs.items()):
            if guest in job.kept.accounts and not self._booked.keys() & job.kept.accounts.keys():
                del self._jobs[name]
                job.path.unlink(missing_ok=True)

    @property
    def counts(self) -> ExchangeCounts | None:
        """The messages sent to other nodes and received from them so far; None if no guest here has exchanged shares.

        Messages between accounts of this node do not leave it, and are not counted.
        """
        return ExchangeCounts(sent=self._sent, received=self._received) if self._exchanges else None

    def notice(self, samples: Sequence[GuestSample]) -> None:
        """Begin the first periods of guests that have just begun to work."""
        for job in self._jobs.values():
            job.notice(samples, self._now_s())

    def told(self, samples: Sequence[GuestSample]) -> tuple[GuestSample, ...]:
        """Add to telemetry samples the shares taken by each guest, by giver, and to a job's first guest the bank's."""
        jobs = {guest: job for job in self._jobs.values() for guest in job.kept.accounts if guest != BANK}
        return tuple(_told(sample, jobs[sample.guest]) if sample.guest in jobs else sample for sample in samples)

    async def run(self, bus: Bus) -> None:
        """Exchange until cancelled."""
        await bus.subscribe(topics.node_topic(self._lab, self._node, "exchange"), self._take, qos=0)
        for job in list(self._jobs.values()):
            await self._apply(job)
        while True:
            payload = await self._next()
            if payload is None:
                await self._periods(bus)
            else:
                await self._hear(bus, payload)

    async def _take(self, _topic: str, payload: bytes) -> None:
        self._received += 1
        with contextlib.suppress(asyncio.QueueFull):
            self._heard.put_nowait(payload)

    async def _next(self) -> bytes | None:
        """Return the next message, or None when a period ends before a message arrives."""
        ends_s = min((min(job.next_s, job.grants_by_s) for job in self._jobs.values()), default=self._now_s() + 1.0)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(ends_s - self._now_s(), 0.0)):
                return await self._heard.get()
        return None

    async def _periods(self, bus: Bus) -> None:
        now_s = self._now_s()
        due = [job for job in self._jobs.values() if job.next_s <= now_s]
        samples = await self._samples() if due else ()
        for job in list(self._jobs.values()):
            out: list[ExchangeMessage] = []
            if job in due:
                await self._guess(job, samples)
                out += job.node.unanswered()
                job.kept.number += 1
                out += job.node.exchange(job.uses(samples, self._now_s()), self._free, job.kept.number)
                job.next_s = self._now_s() + job.kept.order.period_s  # a shorter period would not measure the use
            if job.grants_by_s <= now_s:
                out += job.granted(self._now_s(), late=True)
            await self._carry(bus, job, out)

    async def _guess(self, job: _Job, samples: Sequence[GuestSample]) -> None:
        """Begin to guess the waits of guests that have begun to work, if the order asks for it."""
        if job.kept.order.waits != "traffic" or self.guess is None:
            return
        for sample in samples:
            if sample.guest in job.kept.accounts and sample.guest not in job.guessed and sample.units_done:
                try:
                    await self.guess(sample.guest, job.kept.order.addresses)
                    job.guessed.add(sample.guest)
                except DriverError as error:  # it may have ended just now; else it is tried again in the next period
                    _log.warning("guest %s: its waits cannot be guessed: %s", sample.guest, error)

    async def _hear(self, bus: Bus, payload: bytes) -> None:
        for job in list(self._jobs.values()):
            try:
                message = unseal(job.secret, payload)
            except SealError:
                continue  # perhaps of another job
            await self._carry(bus, job, job.hear(message, self._free, self._now_s()))
            return

    @property
    def _free(self) -> int:
        """The shares of the node that no guest has, and none can get back."""
        return max(self._cores - sum(self._booked.values()), 0)

    async def _carry(self, bus: Bus, job: _Job, out: list[ExchangeMessage]) -> None:
        """Process the messages for this node, write the accounts to disk, and send the other messages."""
        away: list[tuple[str, ExchangeMessage]] = []
        while out or (out := job.granted(self._now_s())):
            message = out.pop(0)
            owner = message.source if isinstance(message, Receipt) else message.target
            node = job.kept.order.bank if owner == BANK else job.kept.order.nodes.get(owner, "")
            self._book(job)
            if node == self._node:
                out += job.hear(message, self._free, self._now_s())
            elif node:
                away.append((node, message))
        self._book(job)
        if job not in self._jobs.values():  # its guests have ended meanwhile
            return
        try:
            self._keep(job)
        except OSError as error:  # no message leaves whose booking is not on the disk
            _log.warning("%s: %s: messages about shares are not sent", job.path, error.strerror)
            return
        await self._apply(job)  # before the messages leave: given shares must not be in force when a receiver has them
        for node, message in away:
            topic = topics.node_topic(self._lab, node, "exchange")
            await bus.publish(topic, seal(job.secret, message), qos=0)
            self._sent += 1

    def _book(self, job: _Job) -> None:
        if job.kept.order.capped:
            self._recount()
            return
        for guest, shares in job.node.held().items():
            if guest in self._booked:
                self._booked[guest] = shares

    async def _apply(self, job: _Job) -> None:
        if job.kept.order.capped:
            await self._enforce()
            return
        for guest, shares in job.node.shares().items():
            if guest in self._booked and self._last.get(guest) != shares:
                self._last.pop(guest, None)
                with contextlib.suppress(TestbedError):  # it is ending; or the share is set in the next period
                    await self._set_share(guest, cores_of(shares))
                    self._last[guest] = shares


def _told(sample: GuestSample, job: _Job) -> GuestSample:
    accounts = job.node.accounts
    bank = None
    if BANK in accounts and sample.guest == next(iter(job.kept.order.nodes)):
        bank = BankSample(share_cores=cores_of(accounts[BANK].shares), taken_cores=_most_taken(accounts[BANK]))
    return msgspec.structs.replace(sample, taken_cores=_most_taken(accounts[sample.guest]), bank=bank)


def _most_taken(account: Account) -> dict[str, float]:
    """Return the shares that an account has taken, in cores by giver; only the greatest that fit a sample."""
    greatest = sorted(account.taken.items(), key=lambda each: -each[1])[:MOST_GIVERS]
    return {giver: cores_of(shares) for giver, shares in greatest}


def _read(path: Path) -> Kept | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Kept)
    except (OSError, msgspec.MsgspecError) as error:
        _log.warning("%s: %s: the shares of its job stay as they are", path, error)
        return None
