"""Applies ipvs mode: virtual servers balance, ipsets and a few iptables rules masquerade.

``isthmus.programs.node_proxy.rules.ipvs`` plans; ipvs_netlink.py sends virtual servers and
addresses, and this module runs ipset and iptables. No transaction spans all four: a sync that fails
is undone command by command, and the next one is full.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import platform
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from typing_extensions import override

from isthmus.errors import ConfigError
from isthmus.logs import log
from isthmus.programs.node_proxy.kernel.backend import (
    ApplyError,
    KernelBackend,
    NoIpvsError,
    SyncReport,
)
from isthmus.programs.node_proxy.kernel.commands import (
    CommandResult,
    IptablesCommands,
    IptablesPrograms,
    run,
)
from isthmus.programs.node_proxy.kernel.host import Sysctls
from isthmus.programs.node_proxy.rules.ipvs.plan import (
    CHAINS,
    FILTER,
    JUMPS,
    MORE_CHAINS,
    IpvsOptions,
    IpvsPlan,
    kernel_version,
    plan,
    rules,
    sysctls,
)
from isthmus.programs.node_proxy.rules.ipvs.servers import (
    AddServer,
    DestinationState,
    IpvsCommand,
    IpvsDestination,
    KernelServer,
    RemoveServer,
    ServerKey,
    TerminatingDestinations,
    VirtualServer,
    Wanted,
    difference,
    in_order,
    inverse,
    owned,
)
from isthmus.programs.node_proxy.rules.ipvs.sets import IpSet, batch, undone
from isthmus.programs.node_proxy.rules.model import IpFamily, PortProtocol, Update
from isthmus.programs.node_proxy.rules.settings import RuleSettings

if TYPE_CHECKING:
    from isthmus.programs.node_proxy.kernel.ipvs_netlink import ServiceAddresses


MIN_IPSET = (6, 0)
_IPSET = "ipset"
_VERSION = re.compile(r"v(\d+)\.(\d+)")
_IN_LINE = re.compile(r"in line (\d+)")


class IpvsSets:
    """Writes, reads and deletes the ipsets of one family."""

    def __init__(self, family: IpFamily) -> None:
        self._names = {each.of(family): each for each in IpSet}

    def version(self) -> tuple[int, int]:
        """The version of ipset; also checks that the kernel supports ipsets.

        Raises:
            ApplyError: the program is missing, or the kernel has no ipsets.
        """
        done = run([_IPSET, "--version"])
        found = _VERSION.search(done.out)
        if done.code or found is None:
            raise ApplyError(f"unknown version of ipset: {done.complaint}")
        _worked(run([_IPSET, "list", "-n"]), "the kernel has no ipsets")
        return int(found[1]), int(found[2])

    def complete(self) -> bool:
        """Whether every set exists.

        Raises:
            ApplyError: the sets cannot be listed.
        """
        listed = _worked(run([_IPSET, "list", "-n"]), "ipset list")
        return self._names.keys() <= set(listed.split())

    def entries(self) -> dict[IpSet, frozenset[str]]:
        """The entries of every existing set.

        Raises:
            ApplyError: the sets cannot be read.
        """
        found: dict[IpSet, set[str]] = {}
        for line in _worked(run([_IPSET, "save"]), "ipset save").splitlines():
            verb, name, *rest = line.split()
            if name not in self._names:
                continue
            entries = found.setdefault(self._names[name], set())
            if verb == "add":
                entries.add(rest[0])
        return {each: frozenset(entries) for each, entries in found.items()}

    def destroy(self) -> list[str]:
        """Delete every set; returns messages about those that remain.

        Raises:
            ApplyError: the sets cannot be listed.
        """
        there = self.entries()
        wrong = []
        for name in (name for name, each in self._names.items() if each in there):
            done = run([_IPSET, "destroy", name])
            if done.code:
                wrong.append(f"cannot delete ipset {name}: {done.complaint}")
        return wrong


def restore_sets(lines: list[str]) -> None:
    """Run a batch of ``ipset restore``; a failed batch is undone, except created sets.

    Raises:
        ApplyError: a line was rejected; ``rule`` is that line.
    """
    if not lines:
        return
    done = run([_IPSET, "restore", "-exist"], input="\n".join([*lines, ""]))
    if not done.code:
        return
    at = _IN_LINE.search(done.complaint)
    number = int(at[1]) if at else 0
    # How far a crashed program got is unknown: sets that existed before are kept.
    if number > 1:
        run([_IPSET, "restore", "-exist"], input="\n".join([*undone(lines[: number - 1]), ""]))
    rule = lines[number - 1] if 0 < number <= len(lines) else ""
    raise ApplyError(f"ipset restore: {done.complaint}", rule=rule)


def _worked(done: CommandResult, what: str) -> str:
    if done.code:
        raise ApplyError(f"{what}: {done.complaint}")
    return done.out


class IpvsRules:
    """Writes and removes the iptables rules of one family."""

    def __init__(self, family: IpFamily) -> None:
        self._commands = IptablesCommands(programs=IptablesPrograms(family=family))

    def check(self) -> None:
        """Check that iptables works.

        Raises:
            ConfigError: it does not.
        """
        self._commands.check()

    def restore(self, text: str) -> None:
        """Rewrite the chains, all or none.

        Raises:
            ApplyError: a rule was rejected; nothing changed.
        """
        self._commands.restore(text)

    def ensure_jumps(self) -> None:
        """Insert missing jumps at the front of the built-in chains.

        Raises:
            ApplyError: a jump could not be inserted.
        """
        for jump in JUMPS:
            place = ("-t", jump.table)
            if not self._commands.failure(*place, "-C", jump.source, *jump.args):
                continue
            why = self._commands.failure(*place, "-I", jump.source, *jump.args)
            if why:
                raise ApplyError(f"iptables failed: {why}", rule=" ".join(jump.args))

    def present(self) -> bool:
        return bool(self._commands.rules("filter", FILTER))

    def remove(self) -> list[str]:
        """Remove jumps and chains; returns messages about those that remain.

        Raises:
            ApplyError: the rules cannot be listed.
        """
        # The chain that no other mode has shows whether ipvs mode ran here.
        there = shutil.which(self._commands.programs.command()[-1]) is not None
        if not there or self._commands.rules("filter", FILTER) is None:
            return []
        wrong = []
        for jump in JUMPS:
            place = ("-t", jump.table)
            while not self._commands.failure(*place, "-C", jump.source, *jump.args):
                why = self._commands.failure(*place, "-D", jump.source, *jump.args)
                if why:
                    wrong.append(f"cannot delete the jump from {jump.source}: {why}")
                    break
        chains = [
            (table, chain)
            for table in CHAINS
            # That chain goes last, so that an interrupted cleanup can be resumed.
            for chain in (*MORE_CHAINS[table], *sorted(CHAINS[table], key=FILTER.__eq__))
            if self._commands.rules(table, chain) is not None
        ]
        # Chains refer to each other: flush all of them before deleting any.
        for verb in ("-F", "-X"):
            for table, chain in chains:
                why = self._commands.failure("-t", table, verb, chain)
                if why:
                    wrong.append(f"cannot delete chain {chain} in table {table}: {why}")
        return wrong


DEPRECATED = (
    "ipvs mode is deprecated in kube-proxy and may be removed in a future release;"
    " use --proxy-mode=nftables instead"
)
#: A test server that shows whether the kernel has the scheduler; RFC 5737 reserves the address.
_TRIAL = ServerKey("198.51.100.0", 20000, PortProtocol.TCP)
_INSTEAD = "use --proxy-mode=nftables or --proxy-mode=iptables"
_log = logging.getLogger("isthmus.nodeproxy")


class VirtualServers(Protocol):
    """A table of virtual servers, a context manager; blocks. The kernel's is ``IpvsTable``."""

    def __enter__(self) -> object: ...

    def __exit__(self, *_: object) -> None: ...

    def servers(self, family: IpFamily) -> list[KernelServer]: ...

    def destinations(self, key: ServerKey) -> Mapping[IpvsDestination, DestinationState]: ...

    def apply(self, command: IpvsCommand) -> None: ...

    def set_timeouts(self, *, tcp_s: int, tcp_fin_s: int, udp_s: int) -> None: ...


class IpvsBackend(KernelBackend):
    """Programs one family by ipvs. ``table`` and ``kernel`` are this machine's by default."""

    def __init__(
        self,
        family: IpFamily,
        *,
        options: IpvsOptions | None = None,
        table: VirtualServers | None = None,
        kernel: Sysctls | None = None,
    ) -> None:
        self.family = family
        self._options = options or IpvsOptions()
        self._given = table
        self._kernel = kernel or Sysctls()
        self._rules = IpvsRules(family)
        self._ipsets = IpvsSets(family)
        self._terminating = TerminatingDestinations()
        self._settings: RuleSettings | None = None
        self._text = ""
        self._sets: Mapping[IpSet, frozenset[str]] | None = None
        self._servers: Wanted = {}
        self._addresses: set[str] = set()
        self._node: set[str] = set()

    # pyroute2 is slow to import: load it only in ipvs mode.

    @functools.cached_property
    def _table(self) -> VirtualServers:
        from isthmus.programs.node_proxy.kernel.ipvs_netlink import IpvsTable

        return self._given or IpvsTable()

    @functools.cached_property
    def _device(self) -> ServiceAddresses:
        from isthmus.programs.node_proxy.kernel.ipvs_netlink import ServiceAddresses

        return ServiceAddresses(self.family)

    @override
    def start(self) -> None:
        """Check IPVS, ipset, iptables and the scheduler; set sysctls, create the interface.

        Raises:
            ConfigError: a program or kernel feature is missing.
        """
        _warn_deprecated()
        self._look_for_ipvs()
        self._look_for_programs()
        for name, value in sysctls(self._options, kernel_version(platform.release())):
            wrong = self._kernel.ensure(name, value)
            if wrong:
                raise ConfigError(f"--proxy-mode=ipvs: {wrong}")
        self._set_timeouts()
        try:
            dummy = self._device.open()
        except ApplyError as exc:
            raise ConfigError(f"--proxy-mode=ipvs: {exc}") from exc
        if not dummy:
            log(_log, logging.WARNING, "kernel has no dummy interfaces (module dummy missing):"
                " adding Service addresses to lo instead of kube-ipvs0",
                family=self.family.value)  # fmt: skip

    @override
    def sync(self, update: Update, settings: RuleSettings, *, full: bool) -> SyncReport:
        """Bring sets, rules, servers and addresses to the view.

        Raises:
            ApplyError: a change was rejected. The changes before it are undone as far as the kernel
                allows, and the next sync is full.
        """
        full = full or self._sets is None or settings != self._settings
        if full:
            self._device.open()
            self._node = self._device.node()
        made = plan(update.view, settings, self._options, self._node)
        try:
            with self._table:
                written = self._write(made, settings, full=full)
        except ApplyError:
            self._sets, self._text = None, ""
            raise
        self._settings = settings
        tables = rules(made, settings)
        counts = {"nat": len(tables.nat), "filter": len(tables.filter)}
        return SyncReport(
            full=full,
            rules=counts,
            written=counts if written else dict.fromkeys(counts, 0),
            no_local_endpoints=made.no_local,
        )

    @override
    def intact(self) -> bool:
        """Whether sets and rules still exist, and this node has the same addresses.

        Also removes waiting destinations whose last connection has ended.
        """
        self._end_terminated()
        if self._device.node() != self._node:
            log(_log, logging.INFO, "addresses of this node changed", family=self.family.value)
            return False
        return self._rules.present() and self._ipsets.complete()

    @override
    def cleanup(self) -> list[str]:
        steps: list[tuple[str, Callable[[], list[str] | None]]] = [
            ("addresses of Services", self._device.close),
            ("rules of iptables", self._rules.remove),
        ]
        if shutil.which("ipset"):
            # The sets identify the node proxy's servers, and rules must go before sets.
            servers = ("virtual servers", self._remove_servers)
            steps = [servers, *steps, ("ipsets", self._ipsets.destroy)]
        wrong: list[str] = []
        for what, work in steps:
            try:
                wrong += work() or []
            except ApplyError as exc:
                wrong.append(f"cannot remove all {what}: {exc}")
        self._sets, self._text, self._servers = None, "", {}
        return wrong

    def _write(self, made: IpvsPlan, settings: RuleSettings, *, full: bool) -> bool:
        """Write all differences or none; returns whether rules were written.

        No transaction spans sets, rules, servers and addresses. Additions come before removals,
        across all four; when one is rejected, everything before it is undone.
        """
        entries = made.entries()
        before = self._ipsets.entries() if full or self._sets is None else self._sets
        lines = batch(self.family, entries, before, create=full)
        more = [line for line in lines if not line.startswith("del ")]
        text = rules(made, settings).text()
        written = full or text != self._text
        with contextlib.ExitStack() as undo:
            restore_sets(more)
            self._undo(undo, "the ipsets", lambda: restore_sets(undone(more)))
            if written:
                self._rules.restore(text)
                if last := self._text:
                    self._undo(undo, "the rules", lambda: self._rules.restore(last))
            if full:
                self._rules.ensure_jumps()
            self._serve(made, before, undo, full=full)
            restore_sets([line for line in lines if line.startswith("del ")])
            undo.pop_all()  # complete: nothing to undo
        self._servers, self._addresses = dict(made.servers), set(made.addresses)
        self._sets, self._text = entries, text
        return written

    def _undo(self, undo: contextlib.ExitStack, what: str, work: Callable[[], object]) -> None:
        """Undo something if a later step fails; what cannot be undone is logged."""

        def back() -> None:
            try:
                work()
            except ApplyError as exc:
                log(_log, logging.WARNING, "failed sync not fully undone",
                    what=what, family=self.family.value, error=exc)  # fmt: skip

        undo.callback(back)

    def _serve(
        self,
        made: IpvsPlan,
        sets: Mapping[IpSet, frozenset[str]],
        undo: contextlib.ExitStack,
        *,
        full: bool,
    ) -> None:
        there = self._present(made.servers, sets, full=full)
        wanted = made.servers if full else self._changed(made.servers)
        commands = difference(wanted, there, excluded=self._options.exclude_cidrs)
        bring, take = in_order(commands)
        before = {each.server.key: each for each in there}
        self._do_or_undo(bring, before, undo)
        # Without a server an address refuses connections; without its address a server is idle.
        held = self._device.ours() if full else self._addresses
        add, remove = made.addresses - held, held - made.addresses
        # How far a rejected change got is unknown.
        self._undo(undo, "the addresses", lambda: self._device.change(add=remove, remove=add))
        self._device.change(add=add, remove=remove)
        self._do_or_undo(take, before, undo)

    def _do_or_undo(
        self,
        commands: Sequence[IpvsCommand],
        before: Mapping[ServerKey, KernelServer],
        undo: contextlib.ExitStack,
    ) -> None:
        for command in commands:
            self._do([command])
            back = inverse(command, before)
            self._undo(undo, str(command), functools.partial(self._do, back))

    def _changed(self, wanted: Wanted) -> Wanted:
        """The wanted servers that differ from the previous ones."""
        return {
            server: destinations
            for server, destinations in wanted.items()
            if self._servers.get(server) != destinations
        }

    def _present(
        self, wanted: Wanted, sets: Mapping[IpSet, frozenset[str]], *, full: bool
    ) -> list[KernelServer]:
        """The kernel's state of the servers that a sync concerns."""
        if full:
            keys = {server.key for server in wanted}
            there = self._table.servers(self.family)
            ours = {each.server.key for each in owned(there, sets)}
            return [each for each in there if each.server.key in keys | ours]
        # Only changed servers are queried, for their destinations' connections.
        now = {server.key for server in wanted}
        changed = {server.key for server in self._changed(wanted)}
        return [
            KernelServer(server=server, destinations=self._table.destinations(server.key))
            for server in self._servers
            if server.key in changed or server.key not in now
        ]

    def _do(self, commands: Sequence[IpvsCommand]) -> None:
        for command in commands:
            self._table.apply(command)
            self._terminating.done([command])

    def _end_terminated(self) -> None:
        if not len(self._terminating):
            return
        try:
            with self._table:
                for key in self._terminating.keys:
                    self._do(self._terminating.ended(key, self._table.destinations(key)))
        except ApplyError as exc:
            log(_log, logging.WARNING, "cannot remove destinations yet", error=exc)

    def _look_for_ipvs(self) -> None:
        if self._given is None and shutil.which("modprobe"):
            with contextlib.suppress(ApplyError):  # IPVS may be built into the kernel
                run(["modprobe", "-a", "ip_vs"])
        try:
            with self._table:
                present = self._table.servers(self.family)
        except ApplyError as exc:
            raise ConfigError(
                f"--proxy-mode=ipvs: {exc} (module ip_vs is missing or not permitted):"
                f" load it, or {_INSTEAD}"
            ) from exc
        scheduler = self._options.scheduler
        if any(each.server.scheduler == scheduler for each in present):
            return
        trial = VirtualServer(key=_TRIAL, scheduler=scheduler)
        try:
            with self._table:
                self._table.apply(AddServer(server=trial))
                self._table.apply(RemoveServer(key=_TRIAL))
        except ApplyError as exc:
            raise ConfigError(
                f"--ipvs-scheduler: the kernel has no scheduler {scheduler!r} (module"
                f" ip_vs_{scheduler} is missing): load it, or use another scheduler"
            ) from exc

    def _look_for_programs(self) -> None:
        try:
            found = self._ipsets.version()
        except ApplyError as exc:
            raise ConfigError(f"--proxy-mode=ipvs: {exc}: install it, or {_INSTEAD}") from exc
        if found < MIN_IPSET:
            raise ConfigError(
                "--proxy-mode=ipvs: ipset {}.{} is too old: at least {}.{} is required".format(
                    *found, *MIN_IPSET
                )
            )
        self._rules.check()

    def _set_timeouts(self) -> None:
        options = self._options
        times = (options.tcp_timeout_s, options.tcp_fin_timeout_s, options.udp_timeout_s)
        if not any(times):
            return
        try:
            with self._table:
                self._table.set_timeouts(tcp_s=times[0], tcp_fin_s=times[1], udp_s=times[2])
        except ApplyError as exc:  # as in kube-proxy: the current values stay
            log(_log, logging.ERROR, "cannot set IPVS timeouts", error=exc)

    def _remove_servers(self) -> None:
        sets = self._ipsets.entries()
        if not sets:
            return
        try:
            with self._table:
                ours = owned(self._table.servers(self.family), sets)
                self._do(difference({}, ours, excluded=self._options.exclude_cidrs))
        except NoIpvsError:
            pass  # without IPVS there are no servers


@functools.cache
def _warn_deprecated() -> None:
    log(_log, logging.WARNING, DEPRECATED)
