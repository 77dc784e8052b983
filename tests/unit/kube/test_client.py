"""The client: configurations that cannot be used, pace, rotation, and what it costs to import."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import socket
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from fakeapi import FakeApi, status, until, with_api

from isthmus.errors import ConfigError, KubeError
from isthmus.kube.client import KubeClient
from isthmus.kube.opening import open_kube
from isthmus.kube.resources import LightKube
from isthmus.tools.pki import making as pki

SECRET = "top-secret-token"


def config(cluster: dict[str, Any] | None = None, user: dict[str, Any] | None = None) -> str:
    return json.dumps(
        {
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
            "clusters": [{"name": "k", "cluster": cluster or {"server": "https://api:6443"}}],
            "users": [{"name": "u", "user": user if user is not None else {"token": SECRET}}],
        }
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not a kubeconfig"),
        ("just words", "not a kubeconfig"),
        ("- a\n- b", "not a kubeconfig"),
        ("{}", "key 'clusters' is missing"),
        (f"a: b\ntoken: [{SECRET}", "not YAML: "),
        ("\x00", "not YAML"),
        (config().replace('"current-context": "c"', '"x": "c"'), "No current context"),
        (config().replace('"current-context": "c"', '"current-context": "d"'), "'d' not found"),
        (config().replace('"cluster": "k"', '"cluster": "z"'), "key 'z' is missing"),
        (config().replace('"user": "u"', '"user": "z"'), "key 'z' is missing"),
        (config(user={"token": 5}), "Expected `str | null`, got `int`"),
        (config({"server": "api:6443"}), "'api:6443' is not a server URL"),
        (config({"server": "ftp://api"}), "'ftp://api' is not a server URL"),
        (
            config({"server": "https://a", "certificate-authority": "/no/ca.crt"}),
            "/no/ca.crt: no such file",
        ),
        (
            config({"server": "https://a", "certificate-authority-data": "%"}),
            "cannot be used",
        ),
        (
            config(
                {
                    "server": "https://a",
                    "certificate-authority-data": base64.b64encode(b"x").decode(),
                }
            ),
            "a certificate or key cannot be used",
        ),
        (config(user={"client-certificate-data": "abc"}), "not base64"),
        (config(user={"tokenFile": "none"}), "tokenFile none: no such file"),
        (
            config(
                user={"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "x"}}
            ),
            "users[].user.exec of client.authentication.k8s.io/v1 is not supported",
        ),
        (config(user={"auth-provider": {"name": "gcp"}}), "auth-provider not supported"),
    ],
)
def test_a_kubeconfig_that_cannot_be_used_is_one_sentence(
    tmp_path: Path, text: str, why: str
) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        open_kube(str(path))
    said = str(caught.value)
    assert f"--kubeconfig {path}: " in said and why in said, said
    assert "\n" not in said and SECRET not in said


def test_a_kubeconfig_that_is_not_there_or_no_file(tmp_path: Path) -> None:
    for path, why in ((tmp_path / "none", "no such file"), (tmp_path, "is a directory")):
        with pytest.raises(ConfigError, match=f"cannot read --kubeconfig {path}: {why}"):
            open_kube(str(path))


def test_no_kubeconfig_outside_a_pod(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("isthmus.kube.kubeconfig.SERVICE_ACCOUNT", str(tmp_path))
    with pytest.raises(
        ConfigError, match=r"--kubeconfig is empty: .* not run in a pod \(no [^ []*/token\)$"
    ):
        open_kube("")
    for name in ("token", "namespace"):
        (tmp_path / name).write_text("x")
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ConfigError, match="no KUBERNETES_SERVICE_HOST"):
        open_kube("")


def test_in_a_pod(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("isthmus.kube.kubeconfig.SERVICE_ACCOUNT", str(tmp_path))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    for name in ("token", "namespace"):
        (tmp_path / name).write_text("x")
    (tmp_path / "ca.crt").write_text("not a certificate")
    with pytest.raises(ConfigError, match=r"in-cluster.: a certificate or key cannot be used"):
        open_kube("")


def test_loopback_is_reached_without_the_proxy_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(api: FakeApi) -> None:
        monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        assert (await api.open().leases("kube-system").list("")).leases == []

    with_api(tmp_path, test)


def test_the_proxy_of_the_file_is_used(tmp_path: Path) -> None:
    async def test(api: FakeApi) -> None:
        path = tmp_path / "proxied"
        proxy = f"http://127.0.0.1:{api.port}"
        path.write_text(config({"server": "http://api.invalid", "proxy-url": proxy}))
        kube = open_kube(str(path))
        try:
            assert (await kube.leases("kube-system").list("")).leases == []
        finally:
            await kube.close()

    with_api(tmp_path, test)


def test_the_server_name_of_the_file_is_what_the_certificate_must_carry(tmp_path: Path) -> None:
    files = pki.init(tmp_path / "pki", server_names=["api.example.com"])
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(files.server_cert, files.server_key)

    async def test(api: FakeApi) -> None:
        await api.stop()
        await api.start(tls)
        cluster = {
            "server": f"https://127.0.0.1:{api.port}",
            "certificate-authority": str(files.ca_cert),
        }
        path = tmp_path / "named"
        path.write_text(config(cluster))
        kube = open_kube(str(path))
        try:
            with pytest.raises(KubeError, match=r"cannot list Leases: https://.*certificate"):
                await kube.leases("kube-system").list("")
            # Corrected, it is read again without a restart.
            path.write_text(config({**cluster, "tls-server-name": "api.example.com"}))
            assert (await kube.leases("kube-system").list("")).leases == []
        finally:
            await kube.close()

    with_api(tmp_path, test)


def test_every_request_carries_the_token_of_the_file(tmp_path: Path) -> None:
    async def test(api: FakeApi) -> None:
        (tmp_path / "token").write_text("one\n")
        seen: list[str] = []

        async def look(request: web.Request) -> web.StreamResponse | None:
            seen.append(request.headers["Authorization"])
            return status(401, "Unauthorized") if seen[-1] != "Bearer two" else None

        api.fault = look
        kube = LightKube(KubeClient(api.kubeconfig(tokenFile="token")))
        try:
            with pytest.raises(KubeError) as caught:
                await kube.leases("kube-system").list("")
            assert caught.value.status == 401 and caught.value.reason == "Unauthorized"
            (tmp_path / "token").write_text("two\n")  # rotated
            await kube.leases("kube-system").list("")
        finally:
            await kube.close()
        assert seen[0] == "Bearer one" and seen[-1] == "Bearer two"

    with_api(tmp_path, test)


@pytest.mark.parametrize("kind", ["pipe", "device", "socket", "directory", "dangling"])
def test_a_token_file_that_becomes_something_else_stalls_nobody(tmp_path: Path, kind: str) -> None:
    async def test(api: FakeApi) -> None:
        token = tmp_path / "token"
        token.write_text("one\n")
        good = ["Bearer one"]

        async def look(request: web.Request) -> web.StreamResponse | None:
            known = request.headers["Authorization"] in good
            return None if known else status(401, "Unauthorized")

        api.fault = look
        kube = LightKube(KubeClient(api.kubeconfig(tokenFile="token")))
        try:
            await kube.leases("kube-system").list("")
            become(token, kind)
            await kube.leases("kube-system").list("")  # the last good one is kept
            good[:] = ["Bearer two"]
            for _ in range(2):
                with pytest.raises(KubeError, match=rf"token file {token}: \S"):
                    await kube.leases("kube-system").list("")
            token.rmdir() if kind == "directory" else token.unlink()
            token.write_text("two\n")
            await kube.leases("kube-system").list("")
        finally:
            await kube.close()

    with_api(tmp_path, test)


def become(path: Path, kind: str) -> None:
    """Put something else where a file was."""
    path.unlink()
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "socket":
            with socket.socket(socket.AF_UNIX) as sock:
                sock.bind(str(path))
        case "directory":
            path.mkdir()
        case _:
            path.symlink_to("/dev/zero" if kind == "device" else "/nowhere")


@pytest.mark.parametrize("key", ["tokenFile", "client-key", "certificate-authority"])
def test_no_file_of_a_kubeconfig_is_opened_that_is_none(tmp_path: Path, key: str) -> None:
    path = tmp_path / "kubeconfig"
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "hole").touch()
    os.truncate(tmp_path / "hole", 1 << 40)
    for name, why in (("pipe", "is a pipe, not a file"), ("hole", "is larger than")):
        cluster = {"server": "https://a"}
        user = {} if key == "certificate-authority" else {key: name}
        cluster |= {key: name} if not user else {}
        path.write_text(config(cluster, user))
        with pytest.raises(ConfigError, match=rf"{key} {name}: {why}"):
            KubeClient(str(path))


def test_a_kubeconfig_that_changed_is_read_again_after_a_refusal(tmp_path: Path) -> None:
    async def test(api: FakeApi) -> None:
        async def look(request: web.Request) -> web.StreamResponse | None:
            good = request.headers["Authorization"] == "Bearer new"
            return None if good else status(401, "Unauthorized")

        api.fault = look
        path = Path(api.kubeconfig(token="old"))
        kube = LightKube(KubeClient(str(path)))
        leases = kube.leases("kube-system")
        try:
            for text in (None, "broken: [", None):
                if text:
                    path.write_text(text)
                with pytest.raises(KubeError):
                    await leases.list("")
            api.kubeconfig(token="new")
            assert (await leases.list("")).leases == []
        finally:
            await kube.close()

    with_api(tmp_path, test)


def test_who_waits_for_an_answer_while_the_configuration_changes_hears_a_kube_error(
    tmp_path: Path,
) -> None:
    async def test(api: FakeApi) -> None:
        async def look(request: web.Request) -> web.StreamResponse | None:
            return status(401, "Unauthorized") if "leases" in request.path else None

        api.fault = look
        api.gate = asyncio.Event()
        kube = LightKube(KubeClient(api.kubeconfig(token="old")))
        waiting = asyncio.ensure_future(kube.tokens.review("token", "audience"))
        try:
            await until(lambda: api.reviewing)
            api.kubeconfig(token="new")
            for _ in range(2):
                with pytest.raises(KubeError):
                    await kube.leases("kube-system").list("")
            with pytest.raises(KubeError, match="cannot review a token"):
                await waiting
        finally:
            await kube.close()

    with_api(tmp_path, test)


def test_an_answer_that_never_ends_is_not_read_to_the_end(tmp_path: Path) -> None:
    async def test(api: FakeApi) -> None:
        async def flood(request: web.Request) -> web.StreamResponse:
            answer = web.StreamResponse()
            await answer.prepare(request)
            for _ in range(64):
                await answer.write(b" " * 1024 * 1024)
            return answer

        api.fault = flood
        with pytest.raises(KubeError, match="cannot decode the answer"):
            await api.open().leases("kube-system").list("")

    with_api(tmp_path, test)


def test_requests_are_spaced_out_after_a_burst(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    sleep = asyncio.sleep

    async def note(delay_s: float) -> None:
        waited.append(delay_s)
        await sleep(0)

    async def test(api: FakeApi) -> None:
        limited = api.open(qps=2, burst=3, clock=lambda: 100.0).leases("kube-system")
        free = api.open(clock=lambda: 100.0).leases("kube-system")
        monkeypatch.setattr("isthmus.kube.client.asyncio.sleep", note)
        for _ in range(5):
            await limited.list("")
            await free.list("")
        monkeypatch.undo()

    with_api(tmp_path, test)
    assert waited == [0.5, 1.0]


def test_what_the_programs_import_does_not_load_lightkube() -> None:
    probe = (
        "import sys, isthmus.kube.api, isthmus.kube.leases, isthmus.kube.leases,"
        " isthmus.kube.tokens, isthmus.kube.rules_leases\n"
        "print(sorted({'lightkube', 'httpx2', 'msgspec', 'yaml'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "[]\n"
