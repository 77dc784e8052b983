"""Find Isthmus programs and their admin ports in a list of pods.

Pure. The command line of its container identifies a program, so that a selector may find pods
without the Isthmus label.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from isthmus.frame.program import Program
from isthmus.programs import program_named, programs
from isthmus.settings.options import options_of

#: Names of programs in our image for manifests that were written for konnectivity.
_OTHER_NAMES = {"proxy-server": "server", "proxy-agent": "agent"}
_ISTHMUS = "isthmus"
_CERT = "admin_cert"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodPort:
    """The admin port of a program in a pod; ``trouble`` says why it cannot be reached, if so."""

    namespace: str
    pod: str
    program: str
    port: int
    https: bool = False
    trouble: str = ""

    @property
    def address(self) -> str:
        """The name for people and other programs."""
        return f"{self.pod}.{self.namespace}:{self.port}"


def admin_ports(pods: Iterable[dict[str, Any]]) -> list[PodPort]:
    """The admin ports of all programs in these pods: servers first, then by namespace and pod."""
    order = {it.name: place for place, it in enumerate(programs())}
    found = [port for pod in pods for port in _of_pod(pod)]
    return sorted(found, key=lambda one: (order[one.program], one.namespace, one.pod, one.port))


def _of_pod(pod: dict[str, Any]) -> Iterator[PodPort]:
    metadata, spec, status = (pod.get(key) or {} for key in ("metadata", "spec", "status"))
    for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        words = [*(container.get("command") or ()), *(container.get("args") or ())]
        program, flags = _command_line([str(word) for word in words])
        if program is None or not program.admin_port:
            continue
        port = _port(program, flags)
        yield PodPort(
            namespace=str(metadata.get("namespace", "")),
            pod=str(metadata.get("name", "")),
            program=program.name,
            port=port,
            https=bool(_value(program, _CERT, flags)),
            trouble=_trouble(status, str(container.get("name", "")))
            or ("" if port else "its admin port is switched off"),
        )


def _command_line(words: Sequence[str]) -> tuple[Program | None, Sequence[str]]:
    """The program that a container runs, and its flags."""
    for place, word in enumerate(words):
        name = word.rpartition("/")[2]
        if name in _OTHER_NAMES:
            return program_named(_OTHER_NAMES[name]), words[place + 1 :]
        if name == _ISTHMUS and place + 1 < len(words):
            return program_named(words[place + 1]), words[place + 2 :]
    # The entry point of the image is isthmus.
    return (program_named(words[0]), words[1:]) if words else (None, ())


def _port(program: Program, flags: Sequence[str]) -> int:
    # The agent's flag has konnectivity's name.
    texts = (_value(program, name, flags) for name in ("admin_port", "admin_server_port"))
    text = next(filter(None, texts), "")
    return int(text) if text.isdecimal() else program.admin_port


def _value(program: Program, attribute: str, flags: Sequence[str]) -> str:
    """The last value of this setting in the flags; empty without one."""
    names = [
        f"--{name}"
        for option in options_of(program.settings_class)
        if option.attribute == attribute
        for name in (option.flag, *option.aliases)
    ]
    found = ""
    for place, word in enumerate(flags):
        flag, equals, value = word.partition("=")
        if flag in names:
            found = value if equals else "".join(flags[place + 1 : place + 2])
    return found


def _trouble(status: dict[str, Any], container: str) -> str:
    """Why the container cannot answer; empty if it runs, as far as is known."""
    states = (status.get(key) or () for key in ("initContainerStatuses", "containerStatuses"))
    for each in (one for listed in states for one in listed):
        state = each.get("state") or {}
        if each.get("name") == container and "running" not in state:
            for kind in ("waiting", "terminated"):
                if kind in state:
                    why = state[kind].get("reason") or "no reason given"
                    return f"container {container} is {kind}: {why}"
    phase = str(status.get("phase") or "Unknown")
    return "" if phase == "Running" else f"the pod is {phase}{_condition(status)}"


def _condition(status: dict[str, Any]) -> str:
    for each in status.get("conditions") or ():
        if each.get("type") == "PodScheduled" and each.get("status") == "False":
            return f": {each.get('message') or each.get('reason') or 'not scheduled'}"
    return ""


def described(pods: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The pods for a support bundle: without environment, arguments and annotations."""
    return [_description(pod) for pod in pods]


def _description(pod: dict[str, Any]) -> dict[str, Any]:
    metadata, spec, status = (pod.get(key) or {} for key in ("metadata", "spec", "status"))
    statuses = [
        one
        for key in ("initContainerStatuses", "containerStatuses")
        for one in status.get(key) or ()
    ]
    return {
        "namespace": metadata.get("namespace"),
        "name": metadata.get("name"),
        "created": metadata.get("creationTimestamp"),
        "deleted": metadata.get("deletionTimestamp"),
        "node": spec.get("nodeName"),
        "hostNetwork": bool(spec.get("hostNetwork")),
        "phase": status.get("phase"),
        "podIPs": [one.get("ip") for one in status.get("podIPs") or ()],
        "conditions": [
            {key: one.get(key) for key in ("type", "status", "reason", "message")}
            for one in status.get("conditions") or ()
        ],
        "containers": [
            {key: one.get(key) for key in ("name", "image", "imageID", "ready", "restartCount")}
            | {"state": one.get("state"), "lastState": one.get("lastState")}
            for one in statuses
        ],
    }
