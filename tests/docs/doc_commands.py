"""Commands of a block: where one ends and the next begins, what it prints, what … stands for.

``console`` blocks have a prompt before each command, ``$`` or ``#``, and what it prints below it.
``sh`` blocks are commands only; one ends where bash finds it whole.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from dataclasses import dataclass

from doc_blocks import Block

#: Programs that run until they are told to stop.
PROGRAMS = frozenset(
    {"server", "agent", "sni-router", "socks5-proxy", "https-proxy", "node-proxy"}
    | {"apiserver-proxy", "up", "dashboard"}
)
_ENDS_BY_ITSELF = {"--once", "--help", "-h", "--cleanup", "--write-config-to"}
_PKI = "/etc/isthmus/pki"
#: What … stands for behind these words: the flags that were explained elsewhere. Those that the
#: command has itself are left out.
STANDARD = {
    ("server",): [
        "--mode=http-connect",
        "--uds-name=/run/isthmus/server.sock",
        f"--cluster-cert={_PKI}/server.crt",
        f"--cluster-key={_PKI}/server.key",
        f"--cluster-ca-cert={_PKI}/ca.crt",
    ],
    ("agent",): [
        "--proxy-server-host=konnectivity.example.com",
        f"--ca-cert={_PKI}/ca.crt",
        f"--agent-cert={_PKI}/agent.crt",
        f"--agent-key={_PKI}/agent.key",
    ],
    ("manifest", "agent"): [
        "--image=registry.example.com/isthmus:1.0",
        "--proxy-server-host=konnectivity.example.com",
        "--ca-cert=/etc/isthmus/ca.crt",
        "--agent-cert=/etc/isthmus/agent.crt",
        "--agent-key=/etc/isthmus/agent.key",
    ],
    ("manifest", "apiserver-proxy"): [
        "--upstream=api.example.com:6443",
        "--ca-cert=/etc/isthmus/ca.crt",
    ],
}
_FIRST_WORDS = re.compile(r"isthmus((?: [a-z0-9-]+)+)")
# Output may have lines that begin with # too, of headings and comments.
_PROMPT = re.compile(r"\$ |# [a-z./]")
_OPERATORS = re.compile(r"\|\||&&|[|;&]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command as it is typed, and what it is said to print; None if nothing is said."""

    text: str
    prints: str | None
    where: str

    @property
    def expanded(self) -> str:
        """The command with what … stands for."""
        return re.sub(r"(?<=\s)…(?=\s|$)", lambda _: standard(self.text), self.text)

    @property
    def stays(self) -> str:
        """The name of the program that it starts, which runs on; empty for what ends."""
        words = words_of(self.expanded.rstrip("& \n"))
        if len(words) < 2 or words[0] != "isthmus" or words[1] not in PROGRAMS:
            return ""
        if (self.prints or "").startswith("isthmus: ") or _ENDS_BY_ITSELF.intersection(words):
            return ""
        ends = (len(words) > 2 and not words[2].startswith("-")) or ">" in words
        return "" if ends or _is_joined(self.expanded) else words[1]


def commands(block: Block) -> list[Command]:
    """The commands of a block, in order."""
    return _of_console(block) if block.language == "console" else _of_shell(block)


def standard(command: str) -> str:
    """The flags that … stands for in this command."""
    found = _FIRST_WORDS.match(command)
    assert found, f"what does … stand for in {command!r}?"
    words = tuple(found[1].split())
    flags = next((STANDARD[words[:n]] for n in (2, 1) if words[:n] in STANDARD), None)
    assert flags is not None, f"STANDARD in {__name__} does not know what … is behind {words}"
    return " ".join(flag for flag in flags if f"{flag.partition('=')[0]}=" not in command)


def words_of(command: str) -> list[str]:
    """The words of a command as a shell reads them, without comments."""
    lexer = shlex.shlex(command.replace("\\\n", " "), posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    return list(lexer)


def calls(command: str) -> list[list[str]]:
    """Every simple command in a command: what is between its operators."""
    found: list[list[str]] = [[]]
    for word in words_of(command):
        if _OPERATORS.fullmatch(word) or word in {"do", "then", "else", "{", "!"}:
            found.append([])
        else:
            found[-1].append(word)
    return [_without_redirection(call) for call in found if call]


def _without_redirection(words: list[str]) -> list[str]:
    at = next((i for i, word in enumerate(words) if set(word) <= set("<>") or word == "2"), None)
    return words if at is None else words[:at]


def _is_joined(command: str) -> bool:
    return any(_OPERATORS.fullmatch(word) for word in words_of(command.rstrip("& \n")))


def _of_console(block: Block) -> list[Command]:
    found: list[Command] = []
    for number, line in enumerate(block.text.splitlines(), block.line):
        where = f"{block.page}:{number}"
        if found and found[-1].prints is None and found[-1].text.endswith("\\"):
            found[-1] = _more(found[-1], text=line)
        elif _PROMPT.match(line):
            found.append(Command(text=line[2:], prints=None, where=where))
        elif found:
            found[-1] = _more(found[-1], prints=line)
        else:
            raise AssertionError(f"{where}: a console block begins with a prompt")
    return found


def _more(command: Command, *, text: str = "", prints: str | None = None) -> Command:
    if prints is None:
        return Command(text=f"{command.text}\n{text}", prints=None, where=command.where)
    # An empty line between two commands is no output.
    if not prints and command.prints is None:
        return command
    said = f"{command.prints or ''}{prints}\n"
    return Command(text=command.text, prints=said, where=command.where)


def _of_shell(block: Block) -> list[Command]:
    found: list[Command] = []
    begun: list[str] = []
    for number, line in enumerate(block.text.splitlines(), block.line):
        if not begun and (not line.strip() or line.lstrip().startswith("#")):
            continue
        begun.append(line)
        text = "\n".join(begun)
        if line.endswith("\\") or bash_objects(text):
            continue
        where = f"{block.page}:{number - len(begun) + 1}"
        found.append(Command(text=text, prints=None, where=where))
        begun = []
    assert not begun, f"{block}: bash does not find an end: {bash_objects(chr(10).join(begun))}"
    return found


def bash_objects(text: str) -> str:
    """What ``bash -n`` says against the text; nothing when it could be run."""
    done = subprocess.run(
        ["bash", "-n"], input=text, capture_output=True, text=True, timeout=20, check=False
    )
    return done.stderr
