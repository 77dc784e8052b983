"""Support bundles: a secret that is planted never survives, wherever that is in a file."""

from __future__ import annotations

import base64
import json
import string
from collections.abc import Callable
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.tools.doctor.bundle_secrets import BLANK, Scrubber

ALNUM = string.ascii_letters + string.digits
LOWER = string.ascii_lowercase + string.digits


def word(alphabet: str, least: int, most: int = 0) -> st.SearchStrategy[str]:
    return st.text(alphabet, min_size=least, max_size=most or least)


def joined(*parts: str | st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    made = [st.just(part) if isinstance(part, str) else part for part in parts]
    return st.tuples(*made).map("".join)


def encoded(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


#: What says itself that it is one.
TELLING = st.one_of(
    joined(st.sampled_from(["AKIA", "ASIA"]), word(string.ascii_uppercase + string.digits, 16)),
    joined(st.sampled_from(["ghp_", "gho_", "ghu_", "ghs_", "ghr_"]), word(ALNUM, 36)),
    joined("github_pat_", word(ALNUM, 22), "_", word(ALNUM, 59)),
    joined("glpat-", word(ALNUM + "-_", 20)),
    joined(
        st.sampled_from(["xoxb-", "xoxp-", "xoxa-"]), word(string.digits, 12), "-", word(ALNUM, 24)
    ),
    word(ALNUM + "/+", 40).filter(
        lambda it: any(map(str.isupper, it)) and any(map(str.islower, it))
    ),
    joined(
        word(string.ascii_lowercase + string.digits, 6),
        ".",
        word(string.ascii_lowercase + string.digits, 16),
    ),
    st.builds(
        lambda name, end: f"{encoded({'alg': 'RS256'})}.{encoded({'sub': name})}.{end}",
        word(ALNUM, 8, 40),
        word(ALNUM + "-_", 16, 64),
    ),
    st.builds(
        lambda kind, body: (
            f"-----BEGIN {kind}PRIVATE KEY-----\n{body}\n-----END {kind}PRIVATE KEY-----"
        ),
        st.sampled_from(["PRIVATE ", "RSA PRIVATE ", "OPENSSH PRIVATE ", "ENCRYPTED PRIVATE "]),
        word(ALNUM + "+/", 64, 200),
    ),
)
#: What is one by where it stands.
PLAIN = word(ALNUM + "-_.~", 8, 40).filter(lambda it: it[0].isalnum() and it[-1].isalnum())
NAMING = st.sampled_from(
    [
        "pw={0}",
        "# pw={0}",
        "password: {0}",
        "# the old one: password: {0} (do not use)",
        'password = "{0}"',
        "PASSWORD='{0}'",
        "db_passwd={0}",
        "the password is {0}",
        "Authorization: Bearer {0}",
        "authorization: basic {0}",
        "curl -H 'Authorization: Bearer {0}' http://a/",
        "http://me:{0}@proxy.example:3128",
        "https_proxy=me:{0}@proxy.example:3128",
        "AWS_SECRET_ACCESS_KEY={0}",
        "client-secret: {0}",
        "api_key={0}",
        "--token {0}",
        "Cookie: session={0}",
        "env:\n- name: DB_PASSWORD\n  value: {0}",
        '{"name": "API_TOKEN", "value": "{0}"}',
        "token: !!str {0}",
        "tokens:\n- {0}",
        "password => {0}",
        "x?password%3D{0}",
        '{"url": "x?password\\u003d{0}"}',
        "the password is: {0}",
        "machine h login u password {0}",
        "<password>{0}</password>",
        "dbpw={0}",
        "curl -u me:a{0} http://a/",
        "//me:{0}@proxy.example/x",
        "AccountKey={0};x=1",
    ]
)
#: How a line may stand in a file.
AROUND = st.sampled_from(
    [
        "{0}",
        "# {0}",
        "  // {0}",
        "; {0}\n",
        "key: {0}",
        "key: '{0}'",
        "- {0} # a comment",
        "X={0}\nY=1\n",
        "a=1,{0},b=2",
        "({0})",
        "<!-- {0} -->",
        'ExecStart=/bin/x --flag="{0}" --other',
        "before {0} after",
        "\t{0}\t",
        "url?x={0}&y=1",
        "{0}\r\n",
    ]
)
QUOTED: list[Callable[[str], str]] = [
    lambda text: text,
    lambda text: json.dumps({"line": text}),
    lambda text: json.dumps({"line": json.dumps({"message": text})}),
    lambda text: json.dumps({"a": f"one\n{text}\nthree"}),
    lambda text: f"lines before\n\n{text}\nand after\n",
]


def survives(secret: str, text: str) -> bool:
    body = secret.split("\n")[1] if "\n" in secret else secret
    return any(form in Scrubber().clean(text) for form in (body, json.dumps(body)[1:-1]))


@settings(max_examples=4 * settings().max_examples)
@given(TELLING, AROUND, st.sampled_from(QUOTED))
def test_what_says_what_it_is(secret: str, around: str, quoted: Callable[[str], str]) -> None:
    text = quoted(around.replace("{0}", secret))
    assert not survives(secret, text), text


@settings(max_examples=3 * settings().max_examples)
@given(PLAIN, NAMING, st.sampled_from(["{0}", "# {0}", "x: 1\n{0}\ny: 2\n"]))
def test_what_is_named_as_one(secret: str, naming: str, around: str) -> None:
    text = around.replace("{0}", naming.replace("{0}", secret))
    assert not survives(secret, text), text


@given(TELLING)
def test_in_a_url_or_in_base64(secret: str) -> None:
    assert not survives(secret, f"GET /x?key={quote(secret, safe='')}&z=1") or "%" in quote(secret)
    inside = base64.b64encode(f"data {secret} end".encode()).decode()
    assert Scrubber().clean(f"data: {inside}\n") == f"data: {BLANK}\n"


BODY = ["MIIEowIBAAKCAQEA" + letter * 48 for letter in "aBcD"]
KEY = ["-----BEGIN RSA PRIVATE KEY-----", *BODY, "-----END RSA PRIVATE KEY-----"]


@pytest.mark.parametrize(
    "text",
    [
        "\n".join(KEY[2:]),  # the beginning was cut off
        "level=info msg=start\n" + "\n".join(f"# {line}" for line in KEY[2:]),
        "\n".join(KEY[:3]),
        " +\n".join(f'"{line}\\n"' for line in KEY),
        "\n".join(f"      {line}" for line in KEY),
        " \\\n".join(KEY),
        "---- BEGIN SSH2 ENCRYPTED PRIVATE KEY ----\n" + "\n".join(BODY),
        base64.encodebytes("\n".join(KEY).encode()).decode(),
        json.dumps(base64.encodebytes("\n".join(KEY).encode()).decode()),
    ],
)
def test_a_key_in_pieces(text: str) -> None:
    cleaned = Scrubber().clean(text)
    assert not any(line in cleaned for line in BODY)
    # In base64 no line of it stays either; the last may be a short one.
    assert max(map(len, cleaned.replace("\\n", "\n").splitlines())) < 32


@pytest.mark.parametrize(
    "text",
    [
        "da39a3ee5e6b4b0d3255bfef95601890afd80709",  # a digest
        "sha256:" + "0123456789abcdef" * 4,
        "/var/lib/kubelet/pods/5f0c/volumes/x/y/z",
        "isthmus_server_dial_failures_total 3",
        "10.0.0.1 fd00::1 node-1.example.com:443",
        "--token-file=/var/run/token",
        "kubernetes.io/hostname",
        "bypass: true",
        "docker run -u 1000:1000 x",
        "securityContext: {runAsUser: 0}",
    ],
)
def test_what_is_none_stays(text: str) -> None:
    assert Scrubber().clean(text) == text


@pytest.mark.parametrize(
    "unit",
    [
        "eyJaaaaaaaa-", "eyJ", "eyJaaaaaaaa.", "access_key", "accesskey", "token", "token key ",
        "-----BEGIN ", "-----BEGIN A PRIVATE KEY-----", "a:", "a@", "://", "aA", "aA1/", "--a-",
        "AKIA", "password is ", "xoxb-", "gh", "\\\\", "\"'", "token\\\\", "pw= ", "bearer ", "a.",
    ],
)  # fmt: skip
def test_adversarial_texts_are_read(unit: str) -> None:
    """300 kB of what patterns like least: a pattern that is not linear would need minutes."""
    text = unit * (300_000 // len(unit))
    assert len(Scrubber().clean(text)) <= 4 * len(text)
