"""A running kube-apiserver as tests use it: its API, kubectl, and accounts with tokens."""

from __future__ import annotations

import http.client
import json
import ssl
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kube.programs import Program, command, connect, die_with_parent, environment, wait_until

ADMIN_TOKEN = "admin-secret"
CALL_LIMIT_S = 20.0
HOST = "127.0.0.1"
Env = Mapping[str, str]


class CallFailedError(Exception):
    """The API or kubectl said no; the text is what it said."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """Where an apiserver is and how to talk to it; ``namespace`` None means from anywhere here.

    ``program`` is its process, where it is one of ours.
    """

    namespace: str | None
    port: int
    ca_cert: Path
    kubectl_path: Path
    home: Path
    token: str = ADMIN_TOKEN
    program: Program | None = None

    @property
    def url(self) -> str:
        """The address, for whoever is in the same namespace."""
        return f"https://{HOST}:{self.port}"

    @property
    def kubeconfig(self) -> Path:
        """A kubeconfig file of the administrator, written when it is first asked for."""
        return write_kubeconfig(self.home / "kubeconfig", self.url, self.ca_cert, self.token)

    # The API.

    @contextmanager
    def connection(self) -> Iterator[http.client.HTTPSConnection]:
        """Keep one connection for many calls."""
        context = ssl.create_default_context(cafile=str(self.ca_cert))
        opened = http.client.HTTPSConnection(HOST, self.port, context=context)
        plain = connect(self.namespace, (HOST, self.port))
        plain.settimeout(CALL_LIMIT_S)
        try:
            opened.sock = context.wrap_socket(plain, server_hostname=HOST)
            yield opened
        finally:
            opened.close()
            plain.close()

    def call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        token: str | None = None,
        over: http.client.HTTPSConnection | None = None,
    ) -> Any:
        """Make one call; the object, or the text when it is none.

        Raises:
            CallFailedError: the status says so; ConnectionError and others as they come.
        """
        if over is None:
            with self.connection() as over:
                return self.call(method, path, body, token=token, over=over)
        kind = "merge-patch+json" if method == "PATCH" else "json"
        headers = {
            "Authorization": f"Bearer {token or self.token}",
            "Content-Type": f"application/{kind}",
        }
        over.request(method, path, None if body is None else json.dumps(body), headers)
        answer = over.getresponse()
        text = answer.read().decode()
        if answer.status >= 400:
            raise CallFailedError(text, answer.status)
        is_json = "json" in answer.headers.get("Content-Type", "")
        return json.loads(text) if is_json else text

    def create(self, path: str, *bodies: Mapping[str, Any]) -> None:
        """Create some objects of one kind."""
        for body in bodies:
            self.call("POST", path, body)

    def get(self, path: str) -> Any:
        """Get an object or a text."""
        return self.call("GET", path)

    def has(self, path: str) -> bool:
        """Whether there is an object."""
        try:
            self.get(path)
        except CallFailedError as exc:
            if exc.status != http.HTTPStatus.NOT_FOUND:
                raise
            return False
        return True

    def is_ready(self) -> bool:
        """What /readyz says; an apiserver that does not answer is not ready."""
        try:
            return bool(self.get("/readyz") == "ok")
        except (CallFailedError, OSError, http.client.HTTPException):
            return False

    # Accounts.

    def service_account_token(
        self, name: str, *, audience: str, namespace: str = "default", expires_s: int = 3600
    ) -> str:
        """Make a service account where there is none, and a token of it for one audience."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts"
        try:
            self.create(path, {"metadata": {"name": name}})
        except CallFailedError as exc:
            if exc.status != http.HTTPStatus.CONFLICT:
                raise
        spec = {"audiences": [audience], "expirationSeconds": expires_s}
        made = self.call("POST", f"{path}/{name}/token", {"spec": spec})
        return str(made["status"]["token"])

    # kubectl.

    def _kubectl(self, args: Sequence[str]) -> list[str]:
        argv = [str(self.kubectl_path), f"--kubeconfig={self.kubeconfig}", *args]
        return command(self.namespace, argv)

    def kubectl(self, *args: str, stdin: bytes = b"", env: Env | None = None) -> bytes:
        """Run kubectl to its end; its output.

        Raises:
            CallFailedError: it failed, with what it said.
        """
        done = subprocess.run(
            self._kubectl(args),
            input=stdin,
            capture_output=True,
            timeout=CALL_LIMIT_S,
            env=environment(HOME=str(self.home), **(env or {})),
            check=False,
        )
        if done.returncode:
            raise CallFailedError(done.stderr.decode(errors="replace"), done.returncode)
        return done.stdout

    @contextmanager
    def kubectl_running(
        self, *args: str, env: Env | None = None
    ) -> Iterator[subprocess.Popen[bytes]]:
        """Run kubectl for the time of the block, with pipes for all that it reads and writes."""
        process = subprocess.Popen(
            self._kubectl(args),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(HOME=str(self.home), **(env or {})),
            preexec_fn=die_with_parent(),
        )
        with process:
            try:
                yield process
            finally:
                process.kill()

    def conditions(self, path: str) -> list[dict[str, Any]]:
        """The conditions of an object; a new one has none, or null."""
        return (self.get(path).get("status") or {}).get("conditions") or []

    def wait_for(self, path: str, what: str, **wanted: str) -> None:
        """Wait until an object has conditions with these statuses."""

        def holds() -> bool:
            status = {found["type"]: found["status"] for found in self.conditions(path)}
            return wanted.items() <= status.items()

        wait_until(holds, what)


def write_kubeconfig(path: Path, url: str, ca_cert: Path, token: str = "") -> Path:
    """Write a kubeconfig, for kubectl or for a webhook; an empty token means none."""
    cluster = {"server": url, "certificate-authority": str(ca_cert)}
    user = {"token": token} if token else {}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "it", "cluster": cluster}],
        "users": [{"name": "me", "user": user}],
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "me"}}],
        "current-context": "it",
    }
    text = json.dumps(content)  # which is YAML too
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
    return path
