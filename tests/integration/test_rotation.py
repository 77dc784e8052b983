"""Certificates and authorities replaced under traffic: nothing drops, new connections see them."""

from __future__ import annotations

import logging
import shutil
import ssl
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from clients import Client, Target, TlsClient, head_for
from stack import Stack, wait_until

from isthmus.frame import lifecycle
from isthmus.net.contexts import watch
from isthmus.tools.pki import making as pki

CUT = (ssl.SSLError, ConnectionError)


@pytest.fixture
def rotating(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stack]:
    """A tunnel whose files may be replaced, and which looks at them often."""
    monkeypatch.setattr(lifecycle, "watch", partial(watch, interval_s=0.02))
    files = pki.init(tmp_path / "pki", server_names=("localhost", "127.0.0.1"))
    with Stack(files) as stack:
        stack.add_server()
        stack.add_agent()
        yield stack


def serial(client: TlsClient) -> str:
    """The serial number of the certificate that the server showed."""
    certificate = client.tls.getpeercert()
    assert certificate is not None
    return str(certificate["serialNumber"])


def seen(stack: Stack) -> str:
    with stack.tls() as client:
        return serial(client)


class Traffic:
    """Request and response over open tunnels, in a thread, until told to stop."""

    def __init__(self, stack: Stack, target: Target) -> None:
        self._pairs: list[tuple[Client, Client]] = []
        for kind in ("uds", "tls"):
            client = stack.tunnel(kind, target.name)
            self._pairs.append((client, target.accept()))
        self._stop = threading.Event()
        self.turns = 0
        self.failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                for client, far in self._pairs:
                    client.send(b"question")
                    assert far.read_exactly(8) == b"question"
                    far.send(b"answer")
                    assert client.read_exactly(6) == b"answer"
                self.turns += 1
        except Exception as exc:
            self.failure = exc

    def __enter__(self) -> Traffic:
        self._thread.start()
        self.goes_on()
        return self

    def goes_on(self) -> None:
        """More goes through, by the same connections."""
        before = self.turns
        wait_until(
            lambda: self.turns > before + 1 or self.failure is not None, "the traffic goes on"
        )
        assert self.failure is None, self.failure

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(20)
        for client, far in self._pairs:
            client.close()
            far.close()


def test_new_certificates_of_the_same_authority(rotating: Stack) -> None:
    old = seen(rotating)
    links = set(rotating.server.links)
    with Target() as target, Traffic(rotating, target) as traffic:
        pki.renew(rotating.files.directory, server_names=("localhost",), force=True)
        wait_until(lambda: seen(rotating) != old, "new connections see the new certificate")
        traffic.goes_on()
        assert set(rotating.server.links) == links  # the agent's link was not dropped either
    rotating.wait_idle()
    # A new agent gets in with its new certificate, and sees the new one of the agent port.
    rotating.add_agent(agent_id="later", proxy_server_host=("localhost",))


def test_a_new_authority(rotating: Stack, tmp_path: Path) -> None:
    old_files = rotating.files
    kept = tmp_path / "old"
    shutil.copytree(old_files.directory, kept)
    with Target() as target, Traffic(rotating, target) as traffic:
        pki.init(old_files.directory, server_names=("localhost", "127.0.0.1"), force=True)

        def new_ones_get_in() -> bool:
            try:
                with rotating.tls() as client:
                    client.send(head_for(target.name))
                    if not client.read_head().startswith(b"HTTP/1.1 200 "):
                        return False
                    target.accept().close()
                    return True
            except CUT:
                return False

        wait_until(new_ones_get_in, "clients of the new authority get in")
        traffic.goes_on()
        # Who shows a certificate of the old authority does not, and no old session helps him.
        rotating.files = pki.PkiFiles.in_directory(kept)
        with pytest.raises(CUT):
            rotating.tls()
        rotating.files = old_files
    rotating.wait_idle()
    rotating.add_agent(agent_id="later")


def test_a_bad_new_file_is_one_line_and_the_old_one_stays(
    rotating: Stack, caplog: pytest.LogCaptureFixture
) -> None:
    old = seen(rotating)
    with caplog.at_level(logging.WARNING, "isthmus.tls"):
        whole = rotating.files.server_cert.read_bytes()
        rotating.files.server_cert.write_bytes(b"not a certificate\n")

        def lines() -> list[str]:
            texts = [record.getMessage() for record in caplog.records]
            return [text for text in texts if str(rotating.files.server_cert) in text]

        # Two listeners use the file, and each says so once.
        wait_until(lambda: len(lines()) >= 2, "the bad file is said")
        for _ in range(5):
            assert seen(rotating) == old
        assert len(lines()) == 2, lines()
    rotating.files.server_cert.write_bytes(whole)
    with Target() as target, rotating.tunnel("tls", target.name), target.accept():
        pass
