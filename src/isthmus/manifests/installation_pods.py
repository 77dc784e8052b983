"""What values say about the pods of either program, and the flags that they add to their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from isthmus.errors import ConfigError
from isthmus.manifests.pods import Extras
from isthmus.manifests.volumes import SECRET_MODE, Volume
from isthmus.settings.checks import nearest
from isthmus.settings.options import Kind, Option, options_of

Given = dict[str, tuple[str, ...]]


def extras_of(values: Mapping[str, Any], who: str) -> Extras:
    """What is added to the pods of ``who``, the server or the agents."""
    own, image = values[who], values["image"]
    pulled = [{"name": name} for name in values["imagePullSecrets"]]
    pod = {
        "nodeSelector": own["nodeSelector"],
        "tolerations": own["tolerations"],
        "affinity": own["affinity"],
        "priorityClassName": own["priorityClassName"],
        "imagePullSecrets": pulled,
    }
    return Extras(
        args=tuple(own["extraArgs"]),
        volumes=_secret(own["extraSecret"]),
        pod={key: what for key, what in pod.items() if what},
        labels=own["podLabels"],
        annotations=own["podAnnotations"],
        resources=own["resources"],
        pull_policy=image["pullPolicy"],
        service_annotations=own.get("service", {}).get("annotations", {}),
    )


def _secret(extra: Mapping[str, str]) -> tuple[Volume, ...]:
    if not extra["name"]:
        return ()
    source = {"secret": {"secretName": extra["name"], "defaultMode": SECRET_MODE}}
    return (Volume(name="extra-files", mount=extra["mountPath"], source=source),)


def with_arguments(given: Given, settings: type[Any], texts: Sequence[str], *, where: str) -> Given:
    """The flags of a program, and those that values add to them.

    Raises:
        ConfigError: one is none of its flags, or has no value; one sentence.
    """
    known: dict[str, Option] = {}
    for option in options_of(settings):
        known |= {f"--{name}": option for name in (option.flag, *option.aliases)}
    found = dict(given)
    for text in texts:
        flag, equals, value = text.partition("=")
        if flag not in known:
            raise ConfigError(f"{where}: unknown flag {flag}{nearest(flag, list(known))}")
        option = known[flag]
        if not equals and option.kind is not Kind.BOOL:
            raise ConfigError(f"{where}: {flag} needs a value, {flag}={option.takes}")
        found[option.attribute] = (
            *found.get(option.attribute, ()),
            value if equals else "true",
        )
    return found


def yes(flag: bool) -> tuple[str, ...]:
    """A boolean as it is typed."""
    return ("true" if flag else "false",)
