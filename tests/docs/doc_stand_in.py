"""Stands in for programs that have no place on a machine of the documents' tests.

It does nothing but look at what it is given: sub-commands have to exist, and whatever kubectl is to
create has to be what the Kubernetes API takes. The real ones are used by `make interop`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import yaml
from doc_yaml import object_objections

SUBCOMMANDS = {
    "kubectl": "apply create run delete get describe patch rollout label annotate taint drain "
    "cordon uncordon logs exec port-forward attach proxy config wait scale edit replace version "
    "top cp diff explain auth set kustomize cluster-info api-resources debug events certificate",
    "systemctl": "start stop restart reload enable disable status daemon-reload is-active show "
    "cat mask unmask kill list-units",
    "helm": "install upgrade uninstall template lint rollback list status show get package "
    "history test repo pull push",
    "kubeadm": "init join reset upgrade token config certs kubeconfig version",
    "kind": "create delete get load export build version",
    "k3s": "server agent kubectl ctr crictl check-config etcd-snapshot token certificate",
    "k0s": "controller worker install start stop reset kubectl config token kubeconfig status "
    "ctr sysinfo default-config version",
    "docker": "build run pull push tag load save images ps stop rm exec logs inspect cp",
    "podman": "build run pull push tag load save images ps stop rm exec logs inspect cp",
}
#: Flags that take the next word, where they may come before the sub-command.
_TAKES_A_WORD = {"-n", "--namespace", "--kubeconfig", "--context", "-f", "--filename"}


def subcommand(words: list[str]) -> str:
    """The first word that is no flag, nor a flag's value."""
    rest = iter(words)
    for word in rest:
        if word in _TAKES_A_WORD:
            next(rest, "")
        elif not word.startswith("-"):
            return word
    return ""


def objections(program: str, words: list[str]) -> list[str]:
    """What is wrong with a call; nothing is run."""
    if not words or any(word in {"--version", "--help", "-h"} for word in words):
        return []
    found = subcommand(words)
    if (program, found) == ("kubectl", "isthmus"):
        return _plugin_objections(words[words.index(found) + 1 :])
    if found not in SUBCOMMANDS[program].split():
        return [f"{program} has no sub-command {found!r}"]
    return []


def _plugin_objections(words: list[str]) -> list[str]:
    """What our plugin for kubectl says against its words; it asks nobody."""
    import click  # not for every call

    from isthmus.cli.plugin import NAME
    from isthmus.cli.plugin import cli as plugin

    context = plugin.make_context(NAME, list(words), resilient_parsing=True)
    given = [*context._protected_args, *context.args]
    name, command, rest = plugin.resolve_command(context, given)
    if command is None:
        return [f"kubectl isthmus has no command {name or words!r}"]
    try:
        command.make_context(name, rest)
    except click.ClickException as error:
        return [f"kubectl isthmus {name}: {error.format_message()}"]
    return []


def given_files(words: list[str]) -> list[str]:
    """The files of ``-f`` and ``--patch-file``."""
    found = []
    for at, word in enumerate(words):
        if word in {"-f", "--filename", "--patch-file"} and at + 1 < len(words):
            found.append(words[at + 1])
        elif word.startswith(("--filename=", "--patch-file=")):
            found.append(word.partition("=")[2])
    return found


def main(program: str, words: list[str]) -> int:
    """Look at a call; exit code 1 when something is wrong with it."""
    wrong = objections(program, words)
    for name in given_files(words) if program == "kubectl" else []:
        text = sys.stdin.read() if name == "-" else Path(name).read_text("utf-8")
        found = [each for each in yaml.safe_load_all(text) if each]
        if not found:
            wrong.append(f"{name}: there is nothing in it")
        if subcommand(words) != "patch":
            wrong += [each for one in found for each in object_objections(one)]
    for each in wrong:
        print(f"{program}: {each}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
