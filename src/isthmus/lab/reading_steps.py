"""Reads the steps of a topology: actions and expectations, in order.

The kind of a step follows from its key. Lists of targets, hosts and ways are expanded to all
combinations, each a step of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import product

from isthmus.lab import reading_words as words
from isthmus.lab.commands import kind
from isthmus.lab.plan import WALL
from isthmus.lab.topology import (
    CUT,
    MEND,
    UDP,
    AgentsAre,
    AttemptFailure,
    Cable,
    Deed,
    Expectation,
    LabAttempt,
    LabHost,
    LabNetwork,
    LabStep,
    Process,
    ProcessAction,
    Run,
    Traffic,
    TrafficEnds,
    Verb,
    WindowsGrow,
)
from isthmus.text.located_yaml import Fields, Located, near, read_all, short

DIRECT = "direct"
MAX_STEPS = 1000  # after expanding lists
MAX_COUNT = 1_000_000_000
MAX_ECHO_BYTES = 100_000_000
MAX_MBIT = 100_000
MAX_CLIENTS = 100
MAX_CLIENTS_OF_ALL = 1000  # the limit of one probe
LEAST_S = 0.1  # a shorter time limit makes no sense

VERB_KEYS = tuple(verb.value for verb in Verb)
DEED_KEYS = tuple(deed.value for deed in Deed)
ATTEMPT_KEYS = ("from", "through", "timeout_s", "seconds", "bytes")
EXPECTATION_KEYS = (*ATTEMPT_KEYS, "fails", "answers", "at_least_mbit", "within_s")
AGENTS_KEYS = ("agents", "are", "within_s")
WINDOWS_KEYS = ("windows", "at_least_bytes", "within_s")
RUN_KEYS = ("run", "from", "prints", "fails", "stdin", "timeout_s", "within_s")
TRAFFIC_KEYS = ("traffic", *ATTEMPT_KEYS, "clients", "pause_s")
END_TRAFFIC_KEYS = ("end_traffic", "at_most_failed")
CABLE_KEYS = (CUT, MEND)
STEP_KEYS = (
    *("traffic", "end_traffic", "agents", "windows", "run"),
    *(*CABLE_KEYS, *DEED_KEYS, *VERB_KEYS),
)

# For these keys of an attempt, the verbs that use them.
_ONLY_WITH = {
    "seconds": (Verb.DOWNLOAD, Verb.UPLOAD),
    "at_least_mbit": (Verb.DOWNLOAD, Verb.UPLOAD),
    "bytes": (Verb.ECHO,),
    "answers": (Verb.GET, Verb.ASK),
}
_PARSERS = {Verb.GET: words.page, Verb.ASK: words.asked}


class StepsReader:
    """Reads the steps of one topology, whose other parts are known."""

    def __init__(
        self,
        *,
        hosts: Mapping[str, LabHost],
        networks: Mapping[str, LabNetwork],
        processes: Mapping[str, Process],
        ways: Sequence[str],
        placeholders: Collection[str],
    ) -> None:
        self._hosts = hosts
        self._networks = networks
        self._processes = processes
        self._ways = (*ways, DIRECT)
        self._placeholders = placeholders
        self._begun: set[str] = set()
        self._ended: set[str] = set()
        self._places: dict[str, Located] = {}
        self._others: dict[str, Callable[[Located], LabStep]] = {
            "agents": self._agents,
            "windows": self._windows,
            "run": self._run,
            "traffic": self._traffic,
            "end_traffic": self._end_traffic,
            **dict.fromkeys(CABLE_KEYS, self._cable),
            **dict.fromkeys(DEED_KEYS, self._act),
        }

    def read(self, node: Located) -> tuple[LabStep, ...]:
        steps: list[LabStep] = []
        for one in node.items(most=MAX_STEPS):
            steps += self._step(one)
            if len(steps) > MAX_STEPS:
                node.error(f"expand to more than {MAX_STEPS} steps")
                return ()
        for name in sorted(self._begun - self._ended):
            self._places[name].error("is never ended: add a step end_traffic")
        return tuple(steps)

    def _step(self, node: Located) -> Sequence[LabStep]:
        if not node.is_mapping:
            node.error(f"must be a mapping, not {node.kind}")
            return ()
        there = [key for key in STEP_KEYS if node.has(key)]
        if not there:
            node.mapping((*STEP_KEYS, *EXPECTATION_KEYS, *RUN_KEYS))  # reports misspelled keys
            node.error(f"does nothing: it needs one of {', '.join(STEP_KEYS)}")
            return ()
        if there[0] in self._others:
            return [self._others[there[0]](node)]
        return self._expectations(node)

    def _expectations(self, node: Located) -> Sequence[LabStep]:
        found = node.mapping((*VERB_KEYS, *EXPECTATION_KEYS), required=("from",))
        fails = None
        if "fails" in found:
            said = (word.member(AttemptFailure) for word in words.some(found, "fails"))
            fails = tuple(one for one in said if one)
            for key in ("answers", "at_least_mbit"):
                if key in found:
                    found[key].error("cannot be combined with fails")
        return [
            Expectation(
                attempt=attempt,
                fails=fails,
                answers=found.text("answers"),
                at_least_mbit=found.number("at_least_mbit", 0.0, 0, MAX_MBIT),
                within_s=_within(found),
            )
            for attempt in self._attempts(node, found)
        ]

    def _attempts(self, node: Located, found: Fields) -> list[LabAttempt]:
        """All combinations: by target, then by host, then by way."""
        verbs = [verb for verb in Verb if verb.value in found]
        if len(verbs) != 1:
            what = " and ".join(verb.value for verb in verbs) or "nothing"
            node.error(f"tries {what}: it needs exactly one of {', '.join(VERB_KEYS)}")
            return []
        verb = verbs[0]
        for key, only in _ONLY_WITH.items():
            if key in found and verb not in only:
                with_ = " and ".join(one.value for one in only)
                found[key].error(f"is only for {with_}, not for {verb.value}")
        targets = read_all(words.some(found, verb.value), _PARSERS.get(verb, words.target))
        sources = [one.reference(self._hosts, "host") for one in words.some(found, "from")]
        ways = [""]
        if "through" in found:
            ways = [one.reference(self._ways, "way") for one in words.some(found, "through")]
            tunnels = any(way != DIRECT for way in ways)
            if tunnels and any(target.startswith(UDP) for target in targets):
                found["through"].error("does not support UDP targets")
        timeout_s = found.number("timeout_s", 5.0, LEAST_S, words.LONGEST_S)
        seconds = found.number("seconds", 3.0, LEAST_S, words.LONGEST_S)
        size = found.integer("bytes", 100_000, 1, MAX_ECHO_BYTES)
        if len(targets) * len(sources) * len(ways) > MAX_STEPS:
            node.error(f"expands to more than {MAX_STEPS} steps")
            return []
        return [
            LabAttempt(
                source=source,
                verb=verb,
                target=target,
                through="" if way == DIRECT else way,
                timeout_s=timeout_s,
                seconds=seconds,
                bytes=size,
            )
            for target, source, way in product(targets, sources, ways)
        ]

    def _agents(self, node: Located) -> LabStep:
        found = node.mapping(AGENTS_KEYS, required=("are",))
        server = found["agents"].reference(self._processes, "process")
        if server and kind(self._processes[server].command) != "server":
            found["agents"].error(f"{server} is not an isthmus server")
        return AgentsAre(
            server=server,
            agents=read_all(found.one_or_nodes("are", most=words.MAX_ITEMS), str),
            within_s=_within(found),
        )

    def _windows(self, node: Located) -> LabStep:
        found = node.mapping(WINDOWS_KEYS, required=("at_least_bytes",))
        process = found["windows"].reference(self._processes, "process")
        if process and kind(self._processes[process].command) not in ("server", "agent"):
            found["windows"].error(f"{process} is not an isthmus server or agent")
        return WindowsGrow(
            process=process,
            at_least_bytes=found.integer("at_least_bytes", 1, 1, MAX_COUNT),
            within_s=_within(found),
        )

    def _run(self, node: Located) -> LabStep:
        found = node.mapping(RUN_KEYS, required=("from",))
        stdin = words.filled(found["stdin"], self._placeholders) if "stdin" in found else ""
        return Run(
            source=self._source(found["from"]) if "from" in found else "",
            command=words.command(found["run"], self._placeholders),
            prints=found.value("prints", words.regular_expression, ""),
            fails=found.boolean("fails", False),
            stdin=stdin or "",
            timeout_s=found.number("timeout_s", 10.0, LEAST_S, words.LONGEST_S),
            within_s=_within(found),
        )

    def _source(self, node: Located) -> str:
        """A host, or the wall, whose rules may be looked at."""
        return WALL if node.text() == WALL else node.reference(self._hosts, "host")

    def _act(self, node: Located) -> LabStep:
        found = node.mapping(DEED_KEYS)
        first, *more = found.items()
        if more:
            node.error(f"does {first[0]} and {more[0][0]}, which are two steps: split them")
        return ProcessAction(
            deed=Deed(first[0]), process=first[1].reference(self._processes, "process")
        )

    def _cable(self, node: Located) -> LabStep:
        found = node.mapping((*CABLE_KEYS, "network"))
        (deed, place), *more = [item for item in found.items() if item[0] in CABLE_KEYS]
        if more:
            node.error(f"does {deed} and {more[0][0]}, which are two steps: split them")
        host = place.reference(self._hosts, "host")
        places = self._hosts[host].attachments if host else ()
        own = [at.network for at in places if not self._networks[at.network].behind]
        if host and not own:
            place.error(f"{host} has no cable to the wall")
        if host and "network" in found:
            which = f"network of {host}"
            own = [one.reference(own, which) for one in words.some(found, "network")]
        return Cable(host=host, networks=tuple(own), whole=deed == MEND)

    def _traffic(self, node: Located) -> LabStep:
        found = node.mapping((*VERB_KEYS, *TRAFFIC_KEYS), required=("from",))
        name = found["traffic"].text() or ""
        if found["traffic"].is_text:
            words.check_name(found["traffic"], name, "traffic", most=40, reserved=())
        if name and name in self._begun:
            found["traffic"].error(f"{short(name)} has already been started")
        self._begun.add(name)
        self._places.setdefault(name, found["traffic"])
        attempts = tuple(self._attempts(node, found))
        clients = found.integer("clients", 2, 1, MAX_CLIENTS)
        if clients * len(attempts) > MAX_CLIENTS_OF_ALL:
            node.error(f"has {clients * len(attempts)} clients: at most {MAX_CLIENTS_OF_ALL}")
        return Traffic(
            name=name,
            attempts=attempts,
            clients=clients,
            pause_s=found.number("pause_s", 0.05, 0, words.LONGEST_S),
        )

    def _end_traffic(self, node: Located) -> LabStep:
        found = node.mapping(END_TRAFFIC_KEYS)
        name = found["end_traffic"].text() or ""
        if found["end_traffic"].is_text and name not in self._begun:
            hint = near(name, self._begun)
            found["end_traffic"].error(f"{short(name)} has not been started{hint}")
        elif name in self._ended:
            found["end_traffic"].error(f"{short(name)} has already been ended")
        self._ended.add(name)
        most = found["at_most_failed"].integer(0, MAX_COUNT) if "at_most_failed" in found else None
        return TrafficEnds(name=name, at_most_failed=most)


def _within(found: Fields) -> float:
    return found.number("within_s", 0.0, 0, words.LONGEST_S)
