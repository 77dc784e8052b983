"""Secrets are taken out in every form; archives are bounded, listed and the same every time."""

from __future__ import annotations

import base64
import gzip
import io
import json
import os
import string
import tarfile
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from urllib.parse import quote

import pytest
from doctor_bed import agent, patient, running, server
from hypothesis import given
from hypothesis import strategies as st

from isthmus.tools.doctor import bundle
from isthmus.tools.doctor.bundle import collect, described
from isthmus.tools.doctor.bundle_parts import BundlePart, MissingError, machine_parts, process_parts
from isthmus.tools.doctor.bundle_secrets import BLANK, Scrubber, known_secrets
from isthmus.tools.pki.making import PkiFiles

AT = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)
SECRET = "s3cr3t-V4lue/+%x"
JWT = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJ4In0.c2lnbmF0dXJl"
KEY = "-----BEGIN EC PRIVATE KEY-----\nMHcCAQEEIA1b2c3d4e5f6g7h8\n-----END EC PRIVATE KEY-----"
# A base64 digit more or less belongs to its neighbours.
CORE = base64.b64encode(SECRET.encode()).decode().rstrip("=")[:-2]


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer {0}",
        '{{"Authorization": "Basic {0}"}}',
        "proxy-authorization: Basic {0}",
        "bearer {0}",
        "https://user:{0}@proxy.example.com:3128/",
        "https://{0}@proxy.example.com",
        "https://user:p@ss/{0}@proxy.example.com:3128/",
        "MY_TOKEN_FOR_THIS={0}",
        "DB_PASSWORD={0}",
        "password: {0}",
        '{{"clientSecret": "{0}"}}',
        '{{"line": "said \\"token\\": \\"{0}\\""}}',
        "token='{0} with spaces'",
        "client-key-data: {0}",
        "?access_token={0}&x=1",
        "api_key={0};",
        "Cookie: a=b; session={0}",
        '{{"secretAccessKey": "{0}"}}',
        "aws_secret_access_key = {0}",
        "DB_PASS={0}",
        '{{"credentials": "{0}"}}',
        "isthmus --token {0} --more",
        '{{"password": ["{0}"]}}',
        '{{"password": {{"value": "{0}", "given": true}}}}',
        "password=a,{0}",
        "password='a\"{0}'",
        'password="a\'{0}"',
        '{{"password": "a\\"{0}"}}',
        '{{"line": "{{\\"password\\": \\"a\\\\\\"{0}\\"}}"}}',
        "token: |\n  {0}\n  more\n",
        "by proxy user:{0}@proxy.example.com:3128",
    ],
)
def test_what_looks_like_a_secret_goes_unknown_or_not(text: str) -> None:
    secret = "Zm9vYmFyYmF6cXV4"
    clean = Scrubber().clean(text.format(secret))
    assert secret not in clean
    assert BLANK in clean


@pytest.mark.parametrize("value", [["x"], {"value": "x"}, 'a"b', "a'b", 'a\\"b', ""])
def test_a_document_can_still_be_read(value: object) -> None:
    """However deep it is: what has a secret in it is quoted in logs, and those in JSON."""
    text = json.dumps({"password": value, "after": "stays"})
    assert json.loads(Scrubber().clean(text))["after"] == "stays"
    line = json.dumps({"line": f"said {text}", "after": "stays"})
    assert json.loads(Scrubber().clean(line))["after"] == "stays"


@pytest.mark.parametrize("secret", [JWT, KEY, json.dumps(KEY), "abcdef.0123456789abcdef"])
def test_tokens_and_keys_go_wherever_they_stand(secret: str) -> None:
    inside = secret.strip('"').split("\n")[-2 if "\n" in secret else 0]
    clean = Scrubber().clean(f"before {secret} after")
    assert inside not in clean
    assert clean.startswith("before ")
    assert clean.endswith(" after")


@pytest.mark.parametrize("secret", [JWT, KEY, "Authorization: Bearer abcdefgh"])
def test_tokens_and_keys_go_in_base64_too(secret: str) -> None:
    encoded = base64.b64encode(secret.encode()).decode()
    clean = Scrubber().clean(f"data: {encoded}\n")
    assert clean == f"data: {BLANK}\n"


def test_a_key_that_is_cut_short_goes() -> None:
    assert Scrubber().clean(f"x {KEY[:60]}") == f"x {BLANK}"


@pytest.mark.parametrize(
    "form",
    [
        SECRET,
        json.dumps(SECRET),
        quote(SECRET, safe=""),
        SECRET.encode().hex(),
        SECRET.encode().hex().upper(),
        base64.b64encode(SECRET.encode()).decode(),
        base64.b64encode(b"x" + SECRET.encode() + b"y").decode(),
        base64.b64encode(b"xy" + SECRET.encode()).decode(),
        base64.urlsafe_b64encode(SECRET.encode()).decode(),
    ],
)
def test_a_known_secret_goes_in_every_form(form: str) -> None:
    scrubber = Scrubber([SECRET])
    assert scrubber.leaks(form)
    clean = scrubber.clean(f"a {form} b")
    assert not scrubber.leaks(clean)
    assert SECRET not in clean
    assert CORE not in clean


@given(
    secret=st.text(string.ascii_letters + string.digits + "+/=-_.", min_size=8, max_size=40),
    before=st.binary(max_size=8),
    after=st.binary(max_size=8),
)
def test_a_known_secret_never_survives_base64(secret: str, before: bytes, after: bytes) -> None:
    encoded = base64.b64encode(before + secret.encode() + after).decode()
    clean = Scrubber([secret]).clean(f"x:{encoded}:y")
    assert BLANK in clean
    left = clean.replace(BLANK, "")[2:-2]
    assert len(left) <= len(encoded) - len(secret)


def test_what_is_no_secret_stays() -> None:
    text = json.dumps(
        {
            "flags": {
                "agent-key": {"value": "/etc/isthmus/agent.key", "given": True},
                "service-account-token-path": {"value": "/var/run/token", "given": True},
                "admin-token-file": {"value": "/etc/token", "given": False},
                "proxy-server-host": {"value": ["server.example.com"], "given": True},
            },
            "sha256": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
            "msg": "linked to 10.0.0.1:8091 as node-1",
        },
        indent=2,
    )
    assert Scrubber().clean(text) == text


def test_known_secrets_are_those_of_files_and_environments(
    tmp_path: Path, certificates: PkiFiles
) -> None:
    (tmp_path / "token").write_text("token-in-a-file\n")
    (tmp_path / "user-token").write_text("token-of-the-user")
    (tmp_path / "kubeconfig").write_text(
        json.dumps(
            {
                "users": [
                    {"user": {"token": "token-of-kubeconfig", "password": "pass-of-kubeconfig"}},
                    {"user": {"tokenFile": "user-token"}},
                    {"user": {"exec": {"env": [{"name": "A", "value": "value-of-exec"}]}}},
                    {"user": {"auth-provider": {"config": {"id-token": "token-of-provider"}}}},
                ]
            }
        )
    )
    settings = agent(
        certificates,
        service_account_token_path=str(tmp_path / "token"),
        kubeconfig=str(tmp_path / "kubeconfig"),
        count_server_leases=True,
    )
    environ = {
        "HTTPS_PROXY": "http://u:p%40ss-of-proxy@p:1",
        "http_proxy": "user:of/http#proxy@p:1",
        "OTEL_EXPORTER_OTLP_HEADERS": "x-team=team-key-of-otel,authorization=Basic%20basic-of-otel",
        "X_TOKEN": "token-of-environment",
        "DB_PASS": "pass-of-environment",
        "SIGNING_KEY": "key-of-environment",
        "DATABASE_URL": "postgres://me:pass-of-database@db/x",
        "TOKEN_FILE": "/etc/token",
        "TLS_KEY": str(certificates.agent_key),
    }
    found = known_secrets([patient("agent", settings)], environ, ["token-of-flag"])
    wanted = {
        "token-in-a-file", "token-of-the-user", "token-of-kubeconfig", "pass-of-kubeconfig",
        "value-of-exec", "token-of-provider", "p@ss-of-proxy", "token-of-environment",
        "pass-of-environment", "key-of-environment", "pass-of-database",
        "of/http#proxy", "team-key-of-otel", "basic-of-otel", "token-of-flag",
        certificates.agent_key.read_text().splitlines()[1],
    }  # fmt: skip
    assert wanted <= found
    assert "/etc/token" not in found
    assert str(certificates.agent_key) not in found


def test_the_key_for_other_servers_is_known_too(certificates: PkiFiles) -> None:
    more = {"peer_cert": str(certificates.agent_cert), "peer_key": str(certificates.agent_key)}
    found = known_secrets([patient("server", server(certificates, **more))], {})
    assert certificates.agent_key.read_text().splitlines()[1] in found


def test_files_of_another_machine_are_not_taken_from_this_one(certificates: PkiFiles) -> None:
    settings = server(certificates, policy_file=str(certificates.ca_cert))
    near, far = (running("server", settings, here=here) for here in (True, False))
    (files,) = process_parts("programs/server", near)
    assert str(certificates.ca_cert) in files.get()
    (none,) = process_parts("programs/server", far)
    with pytest.raises(MissingError, match="on another machine"):
        none.get()


def unpacked(data: bytes) -> dict[str, str]:
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
        found = {}
        for entry in archive.getmembers():
            assert entry.mode == 0o600
            file = archive.extractfile(entry)
            assert file is not None
            found[entry.name] = file.read().decode()
        return found


def said(text: str) -> str:
    return text


def missing() -> str:
    raise MissingError("ip cannot be run: password=hunter22")


def broken() -> str:
    raise ZeroDivisionError("oh")


def test_a_bundle_lists_what_is_in_it_and_what_is_not() -> None:
    parts = [
        BundlePart("b.txt", partial(said, f"token={SECRET}")),
        BundlePart("a/x.txt", partial(said, "plain")),
        BundlePart("none.txt", missing),
        BundlePart("broken.txt", broken),
    ]
    made = collect(parts, Scrubber([SECRET]), created=AT)
    files = unpacked(made.to_bytes())
    assert list(files) == [
        "isthmus-support/manifest.json",
        "isthmus-support/a/x.txt",
        "isthmus-support/b.txt",
    ]
    manifest = json.loads(files["isthmus-support/manifest.json"])
    assert [one["name"] for one in manifest["members"]] == ["a/x.txt", "b.txt"]
    assert {one["name"]: one["why"] for one in manifest["missing"]} == {
        "broken.txt": "ZeroDivisionError: oh",
        "none.txt": f"ip cannot be run: password={BLANK}",
    }
    assert manifest["secretsRemoved"] >= 1
    assert SECRET not in str(files)
    assert any("b.txt" in line for line in described(made))
    assert any("none.txt" in line for line in described(made))


def test_the_same_members_give_the_same_bytes() -> None:
    parts = [BundlePart("a", partial(said, "1")), BundlePart("b", partial(said, "2"))]
    first = collect(parts, Scrubber(), created=AT).to_bytes()
    again = collect(reversed(parts), Scrubber(), created=AT).to_bytes()
    assert first == again


def test_sizes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "MOST_BYTES_EACH", 100)
    monkeypatch.setattr(bundle, "MOST_BYTES", 150)
    parts = [BundlePart(name, partial(said, "x " * 100)) for name in ("a", "b", "c")]
    made = collect(parts, Scrubber(), created=AT)
    assert [(one.name, len(one.content), one.cut) for one in made.members] == [
        ("a", 100, True),
        ("b", 50, True),
    ]
    assert [name for name, _ in made.missing] == ["c"]


def test_what_still_has_a_secret_is_withheld(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last look, should the cleaning ever miss something."""
    monkeypatch.setattr(Scrubber, "clean", lambda self, text: text)
    made = collect([BundlePart("a", partial(said, SECRET))], Scrubber([SECRET]), created=AT)
    assert made.members == ()
    assert "withheld" in made.missing[0][1]
    assert SECRET.encode() not in gzip.decompress(made.to_bytes())


def test_the_environment_is_a_list_of_what_may_be_shown() -> None:
    proxies = {
        "HTTPS_PROXY": "http://p:1",
        "http_proxy": "me:hush@p:2",
        "HARMLESS": "unknown-thing",
    }
    environ = {**os.environ, **proxies}
    part = next(one for one in machine_parts(environ) if one.name == "machine/environment.txt")
    text = part.get()
    assert "HTTPS_PROXY=http://p:1\n" in text
    assert f"http_proxy={BLANK}@p:2\n" in text
    assert "unknown-thing" not in text


def test_versions_and_limits_of_this_machine() -> None:
    parts = {one.name: one for one in machine_parts({})}
    versions = json.loads(parts["versions.json"].get())
    assert versions["openssl"].startswith("OpenSSL")
    assert versions["libraries"]["cryptography"]
    limits = json.loads(parts["machine/limits.json"].get())
    assert "RLIMIT_NOFILE" in limits["limits"]
    assert "kernel.osrelease" in parts["machine/sysctls.txt"].get()
