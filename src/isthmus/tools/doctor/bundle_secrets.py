"""Remove secrets from texts: known ones in every encoding, and everything that looks like one.

Known secrets are the contents of the programs' secret files and variables; they are found anywhere,
plain, in base64, in hexadecimal and percent-encoded. In addition, everything that looks like a key,
a token, a password or a header with one is removed, known or not. Secrets are read only to search
for them, and are not written anywhere.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from isthmus.errors import IsthmusError
from isthmus.frame.patient import Patient
from isthmus.net.files import read_part
from isthmus.tools.doctor.files import placed
from isthmus.tools.doctor.layout import named_files

BLANK = "[redacted]"
#: Shorter secrets would match everywhere; they are too weak to be used anyway.
SHORTEST = 6
_PIECE_CHARS = 1 << 16
_MOST_KEY_CHARS = 1 << 14
_WORDS = (
    "token", "secret", "pass", "pw", "credential", "cookie", "client-key-data", "signature",
    *(f"{w}{sign}key" for w in ("api", "access", "account", "private") for sign in ("", *"_-.")),
)  # fmt: skip
# Names of secrets, up to their end: secretAccessKey is one, and token-file is not.
_KEY_WORD = (
    r"(?:(?:token|secret|passw(?:or)?d|passphrase|passcode|credential|"
    r"(?:api|access|account|private)[_.-]?key|client-key-data|cookie|signature)"
    # Bounded: otherwise a text of such words alone would be scanned once for each of them.
    r"(?:[_-]?(?:access|key|value|data|text|string|hash)){0,4}"
    r"s?|(?<![a-z])pass|(?<![a-z])pwd?)"
)
# Where a word may begin: also after an escape sequence of JSON or a URL, as in \nAKIA.
_START = r"(?:(?<![A-Za-z0-9_])|(?<=\\[nrtbf])|(?<=\\u[0-9A-Fa-f]{4})|(?<=%[0-9A-Fa-f]{2})|(?<=_))"
# After the name: its closing quote, a separator that may be escaped as in a URL or in JSON, the
# beginning of a list or an object such as {"value": …}, and a tag or an anchor of YAML.
_IS = (
    r"\\*[\"']?\s*(?:[:=]|%3[ad]|\\+u003[ad])>?\s*"
    r"(?:[\[{]\s*(?:\\*[\"']value\\*[\"']\s*:\s*)?)?(?:-[ \t]+)?(?:[!&]\S{0,64}[ \t]+)?"
)
# A value to its closing quote, at any depth of quoting: a quote with more backslashes than the
# first is a part of the value. Or, without quotes, to a space.
_VALUE = (
    r"(?:(?P<quote>\\*[\"'])(?P<quoted>[^\r\n]*?)(?=(?<!\\)(?P=quote)|[\r\n]|\Z)"
    r"|(?P<secret>(?:[^\s\"'\\\[{]|\\(?![\"']))(?:[^\s\"'\\]|\\(?![\"']))*))"
)
_KEY_KIND = r"[A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)? ?-{4,5}"
# The part to remove is the group "secret" or "quoted", or the whole match. The words before each
# pattern are a quick filter: without any of them the pattern is skipped, as in most snapshots.
_FORMS: tuple[tuple[tuple[str, ...], str], ...] = (
    # A key, also with its lines written as \n in JSON.
    (
        ("private key",),
        rf"-{{4,5}} ?BEGIN {_KEY_KIND}.*?(?:-{{4,5}} ?END {_KEY_KIND}|\Z)",
    ),
    # The same in base64, with any line breaks.
    (
        ("ls0tls1crudjti",),
        r"LS0tLS1CRUdJTi[A-Za-z0-9+/=]*"
        r"(?:(?:\\+[nr]|[\s\"'\\,]){1,64}(?:[A-Za-z0-9+/]{16,}={0,2}|[A-Za-z0-9+/]{1,15}={1,2}))*",
    ),
    # A header, as a line or as JSON: everything after the scheme.
    (
        ("authorization",),
        r"authorization\\*[\"']?\s*[:=]\s*\\*[\"']?(?P<secret>[^\r\n\"',}]+)",
    ),
    (("cookie",), r"cookie\\*[\"']?\s*:\s*\\*[\"']?(?P<secret>[^\r\n\"']+)"),
    (("bearer",), r"\bbearer[\s:=]+(?P<secret>[\w.~+/=-]{6,})"),
    (("basic",), r"\bbasic\s+(?P<secret>[A-Za-z0-9+/=]{8,})"),
    # A bootstrap token of Kubernetes.
    ((".",), rf"{_START}[a-z0-9]{{6}}\.[a-z0-9]{{16}}(?![A-Za-z0-9])"),
    # Tokens with a known prefix: AWS, GitHub, GitLab, Slack, Google, Stripe, npm, Vault,
    # DigitalOcean, SendGrid and age.
    (
        ("akia", "asia", "aroa", "aida", "agpa", "anpa", "anva", "abia", "acca"),
        rf"{_START}(?-i:A(?:KIA|SIA|ROA|IDA|GPA|NPA|NVA|BIA|CCA)[A-Z0-9]{{16}})(?![A-Za-z0-9])",
    ),
    (("gh", "github_pat_"), rf"{_START}(?:gh[pousr]_|github_pat_)[A-Za-z0-9_]{{20,255}}"),
    (("gl",), rf"{_START}gl(?:pat|dt|rt|cbt|ptt|ft|imt|agent|soat)-[\w.-]{{16,255}}"),
    (("xox", "xapp-", "xwfp-"), rf"{_START}(?:xox[a-z](?:\.xox[a-z])?|xapp|xwfp)-[\w-]{{8,255}}"),
    (("hooks.slack.com",), r"hooks\.slack\.com/(?:services|workflows)/(?P<secret>[\w/-]{8,255})"),
    (("aiza", "ya29.", "gocspx-"), rf"{_START}(?:AIza|ya29\.|GOCSPX-)[\w-]{{20,512}}"),
    (("k_live_", "k_test_"), rf"{_START}[sr]k_(?:live|test)_\w{{10,255}}"),
    (("npm_", "dop_v1_"), rf"{_START}(?:npm|dop_v1|doo_v1|dor_v1)_\w{{20,255}}"),
    (("hvs.", "hvb.", "hvr."), rf"{_START}hv[sbr]\.[\w-]{{20,512}}"),
    (("sg.",), rf"{_START}SG\.[\w-]{{16,64}}\.[\w-]{{16,128}}"),
    (("age-secret-key-",), rf"{_START}AGE-SECRET-KEY-1[A-Z0-9]{{20,128}}"),
    # A secret's name in a sentence.
    (
        _WORDS,
        r"\b(?:password|passphrase|passwd|secret|token)\s{1,8}(?:is|was|to)[:=]?\s{1,8}"
        r"(?P<secret>\S{4,512})",
    ),
    # As in .netrc, in XML, and after curl's flags; not the user and group of a container.
    (("login",), r"\blogin\s{1,8}\S{1,128}\s{1,8}password\s{1,8}(?P<secret>\S{1,512})"),
    (_WORDS, rf"<[\w:.-]{{0,64}}?{_KEY_WORD}>(?P<secret>[^<\r\n]{{1,512}})"),
    (
        ("-u",),
        r"(?:(?<!\S)-u|-user)[\s=]{1,4}[\"']?[^\s:\"']{1,128}:(?!\d+(?:\s|$))"
        r"(?P<secret>[^\s\"']{1,256})",
    ),
    # A variable in a list of names and values, as containers have them.
    (
        _WORDS,
        rf"name\\*[\"']?\s*:\s*\\*[\"']?[\w.-]{{0,64}}?{_KEY_WORD}\\*[\"']?\s*,?\s*\\*[\"']?value"
        rf"{_IS}{_VALUE}",
    ),
    # User and password of a URL: all before the last @, since a password may contain any character.
    (("@",), r"://(?P<secret>(?:(?!://)[^\s\"']){1,512})(?=@)"),
    # The same without a scheme, as in proxy variables.
    (("@",), r"(?:(?<=//)|(?<![\w./%+@-]))[\w.%+-]{1,128}:(?P<secret>[^\s\"'@]{1,256})(?=@[\w\[])"),
    # A YAML value of several lines.
    (
        _WORDS,
        rf"{_KEY_WORD}\s*:\s*[|>][-+0-9]*[ \t]*\r?\n"
        r"(?P<secret>(?:[ \t]+[^\r\n]*(?:\r?\n|\Z))+)",
    ),
    # A variable, flag or key with the name of a secret; not the name of a file with one.
    (_WORDS, rf"{_KEY_WORD}{_IS}{_VALUE}"),
    # The same after letters, as dbpw and mypass; bypass is another word, and == is base64.
    (("pw", "pass"), rf"(?<=[a-z])(?:pwd?|(?<!by)(?<!com)pass) ?[:=][ \t]*(?!=){_VALUE}"),
    (_WORDS, rf"--(?:[\w-]{{0,64}}-)?{_KEY_WORD}\s+(?P<secret>[^\s\"'-][^\s\"']*)"),
    (_WORDS, rf"{_KEY_WORD}\w{{0,64}}=(?!=){_VALUE}"),
    (
        ("certificate-data",),
        r"certificate-data[\"']?\s*:\s*[\"']?(?P<secret>[A-Za-z0-9+/=]{16,})",
    ),
)
_PATTERNS = tuple(
    (words, re.compile(pattern, re.IGNORECASE | re.DOTALL)) for words, pattern in _FORMS
)
# A secret key of AWS is known only by its length and its letters; 40 hexadecimal ones are a digest.
_AWS_KEY = re.compile(
    r"(?:(?<![A-Za-z0-9/+])|(?<=\\[nrtbf])|(?<=\\u[0-9A-Fa-f]{4})|(?<=%[0-9A-Fa-f]{2}))"
    r"(?=[^A-Z]{0,39}[A-Z])(?=[^a-z]{0,39}[a-z])"
    r"[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+=])"
)
# Words with dots between them. A JSON web token is a sequence of these: each is read once,
# whatever it contains.
_DOTTED = re.compile(r"(?<![\w-])[\w-]++(?:\.[\w-]*+)++")
_JWT_START, _JWT_PART_CHARS = "eyJ", 8  # base64 of '{"'
# The end of a key whose beginning was cut off; and, read backwards, the possible key before it.
_KEY_END = re.compile(rf"-{{4,5}} ?END {_KEY_KIND}")
_KEY_BACKWARDS = re.compile(r"[A-Za-z0-9+/=\s\"'\\#,]*")
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{24,}={0,2}")


class Scrubber:
    """Removes secrets; ``removed`` counts them."""

    def __init__(self, known: Iterable[str] = ()) -> None:
        self.removed = 0
        # Indexed by how they begin: a text is scanned once, not once for each of them.
        self._known: dict[str, set[str]] = {}
        for secret in known:
            for form in forms_of(secret):
                self._known.setdefault(form[:SHORTEST], set()).add(form)

    def clean(self, text: str) -> str:
        """The text without secrets."""
        for form in sorted(self._known_in(text), key=len, reverse=True):
            self.removed += text.count(form)
            text = text.replace(form, BLANK)
        for pattern in _possible(text):
            text = pattern.sub(self._blank, text)
        text = self._without_key_ends(text)
        if _JWT_START in text:
            text = _DOTTED.sub(self._blank_jwt, text)
        text = _AWS_KEY.sub(self._blank_whole, text)
        return _BASE64.sub(self._blank_encoded, text)

    def leaks(self, text: str) -> bool:
        """Whether a known secret is still in the text."""
        return bool(self._known_in(text))

    def _known_in(self, text: str) -> set[str]:
        """The forms of known secrets that a text contains."""
        starts: set[str] = set()
        for at in range(0, len(text) if self._known else 0, _PIECE_CHARS):
            piece = text[at : at + _PIECE_CHARS + SHORTEST - 1]
            have = {piece[i : i + SHORTEST] for i in range(len(piece) - SHORTEST + 1)}
            starts |= self._known.keys() & have
        return {form for start in starts for form in self._known[start] if form in text}

    def _without_key_ends(self, text: str) -> str:
        """The text without keys of which only the end is present."""
        parts, at = [], 0
        for end in _KEY_END.finditer(text):
            before = text[at : end.start()]
            found = _KEY_BACKWARDS.match(before[: -_MOST_KEY_CHARS - 1 : -1])
            assert found is not None  # it also matches the empty text
            parts += [before[: len(before) - len(found[0])], BLANK]
            at = end.end()
            self.removed += 1
        return "".join((*parts, text[at:]))

    def _blank_whole(self, match: re.Match[str]) -> str:
        self.removed += 1
        return BLANK

    def _blank_jwt(self, match: re.Match[str]) -> str:
        at = _jwt_in(match[0])
        if at < 0:
            return match[0]
        self.removed += 1
        return match[0][:at] + BLANK

    def _blank(self, match: re.Match[str]) -> str:
        groups = match.groupdict()
        if not groups:
            self.removed += 1
            return BLANK
        group = "secret" if groups["secret"] is not None else "quoted"
        secret = groups[group]
        if BLANK in secret or not secret.strip():
            return match[0]  # already removed
        self.removed += 1
        start, end = match.span(group)
        whole = match[0]
        return whole[: start - match.start()] + BLANK + whole[end - match.start() :]

    def _blank_encoded(self, match: re.Match[str]) -> str:
        """Decode what may be base64, since it may contain a key or a token."""
        inside = _decoded(match[0])
        if inside is None:
            return match[0]
        if not _looks_secret(inside) and not self._known_in(inside):
            return match[0]
        self.removed += 1
        return BLANK


def _possible(text: str) -> Iterator[re.Pattern[str]]:
    """The patterns that may be found in a text."""
    small = text.lower()
    return (pattern for words, pattern in _PATTERNS if any(word in small for word in words))


def _looks_secret(text: str) -> bool:
    """Whether something in a text has a form of secrets."""
    return (
        any(pattern.search(text) for pattern in _possible(text))
        or any(_jwt_in(found[0]) >= 0 for found in _DOTTED.finditer(text))
        or _AWS_KEY.search(text) is not None
    )


def _jwt_in(dotted: str) -> int:
    """Where a JSON web token begins among words with dots between them; -1 without one."""
    if _JWT_START not in dotted:
        return -1
    parts, start = dotted.split("."), 0
    for part, following in pairwise(parts):
        at = part.find(_JWT_START)
        # The first of them is the longest.
        enough = len(part) - at >= len(_JWT_START) + _JWT_PART_CHARS
        if at >= 0 and enough and len(following) >= _JWT_PART_CHARS:
            return start + at
        start += len(part) + 1
    return -1


def _decoded(text: str) -> str | None:
    """The decoded base64, if it is text."""
    plain = text.rstrip("=").replace("-", "+").replace("_", "/")
    plain = plain[: len(plain) - (len(plain) % 4 == 1)]
    try:
        return base64.b64decode(plain + "=" * (-len(plain) % 4)).decode("utf-8")
    except (binascii.Error, UnicodeDecodeError):
        return None


def forms_of(secret: str) -> Iterator[str]:
    """How a secret may be written: plain, quoted, in hexadecimal, in base64 at any offset."""
    if len(secret) < SHORTEST:
        return
    raw = secret.encode("utf-8", "surrogateescape")
    yield secret
    yield json.dumps(secret)[1:-1]
    yield json.dumps(secret, ensure_ascii=False)[1:-1]
    yield quote(secret, safe="")
    yield quote(secret)
    yield raw.hex()
    yield raw.hex().upper()
    for offset in range(3):
        encoded = base64.b64encode(bytes(offset) + raw).decode().rstrip("=")
        # Characters that also depend on the neighbouring bytes are left out, at both ends.
        first = (offset * 8 + 5) // 6
        last = len(encoded) - bool((offset + len(raw)) % 3)
        core = encoded[first:last]
        if len(core) >= SHORTEST:
            yield core
            yield core.replace("+", "-").replace("/", "_")


_MOST_BYTES = 1024 * 1024
_SECRET_NAME = re.compile(
    r"token|secret|passw|passphrase|_pass$|^pass$|credential|private|cookie|key$", re.IGNORECASE
)
_POD_TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount/token"
_KEY_LINES = re.compile(r"^[A-Za-z0-9+/=]{24,}$", re.MULTILINE)
_USER_KEYS = ("token", "password", "client-key-data", "id-token", "refresh-token")
_USER_FILES = ("tokenFile", "client-key")


def known_secrets(
    patients: Iterable[Patient], environ: Mapping[str, str], tokens: Iterable[str] = ()
) -> set[str]:
    """Every known secret: from files, from environments, and the given tokens."""
    found = {*tokens, *_of_environ(environ), *_of_file(Path(_POD_TOKEN))}
    for patient in patients:
        found.update(_of_environ(_environ(patient)))
        try:
            files = list(named_files(patient.settings))
        except IsthmusError:
            files = []
        for file in files:
            path = placed(patient, file.path)
            if file.flag == "--kubeconfig":
                found.update(_of_kubeconfig(path))
            elif file.secret:
                found.update(_of_file(path))
    return {secret for secret in found if secret.strip()}


def _environ(patient: Patient) -> Mapping[str, str]:
    pid = patient.running.pid if patient.running is not None else 0
    if not pid:
        return {}
    try:
        text = Path(f"/proc/{pid}/environ").read_bytes().decode("utf-8", "surrogateescape")
    except OSError:
        return {}
    return dict(entry.partition("=")[::2] for entry in text.split("\0") if "=" in entry)


def _of_environ(environ: Mapping[str, str]) -> Iterator[str]:
    for name, value in environ.items():
        if _SECRET_NAME.search(name) and not _names_a_file(name, value):
            yield value
        if "@" in value and ("://" in value or name.lower().endswith("_proxy")):
            yield from _of_url(value)
        if name.upper().endswith("_HEADERS"):  # like OTEL_EXPORTER_OTLP_HEADERS: a=b,c=d
            yield from _of_headers(value)


def _names_a_file(name: str, value: str) -> bool:
    return name.upper().endswith(("_FILE", "_PATH", "_DIR")) or os.path.exists(value)


def _of_url(text: str) -> Iterator[str]:
    # Without a parser: a password may contain characters that should have been escaped.
    user, colon, password = text.rpartition("@")[0].rpartition("://")[2].partition(":")
    secret = password if colon else user
    yield from {secret, unquote(secret)}


def _of_headers(text: str) -> Iterator[str]:
    for header in text.split(","):
        value = unquote(header.partition("=")[2]).strip()
        yield value
        yield value.rpartition(" ")[2]  # without its scheme, such as Bearer


def _read(path: Path) -> str:
    try:
        return read_part(path, _MOST_BYTES).decode("utf-8", "surrogateescape")
    except OSError:
        return ""


def _of_file(path: Path) -> Iterator[str]:
    """A key line by line, since it may be wrapped differently elsewhere; others as a whole."""
    text = _read(path)
    if "PRIVATE KEY-----" in text:
        yield from _KEY_LINES.findall(text)
        yield "".join(_KEY_LINES.findall(text))
    else:
        yield text.strip()
        yield from (line.strip() for line in text.splitlines())


def _of_kubeconfig(path: Path) -> Iterator[str]:
    import yaml

    try:
        content = yaml.safe_load(_read(path))
        users = [each["user"] for each in content["users"]]
    except (yaml.YAMLError, LookupError, TypeError):
        return
    for user in users:
        if isinstance(user, dict):
            yield from _of_user(user, path.parent)


def _of_user(user: Mapping[str, Any], above: Path) -> Iterator[str]:
    for key in _USER_KEYS:
        if isinstance(user.get(key), str):
            yield user[key]
    for key in _USER_FILES:
        if isinstance(user.get(key), str):
            yield from _of_file(above / user[key])
    provider = user.get("auth-provider")
    config = provider.get("config") if isinstance(provider, dict) else None
    if isinstance(config, dict):
        yield from (value for value in config.values() if isinstance(value, str))
    command = user.get("exec")
    for variable in (command.get("env") or ()) if isinstance(command, dict) else ():
        if isinstance(variable, dict) and isinstance(variable.get("value"), str):
            yield variable["value"]
