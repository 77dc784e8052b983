"""A health port that speaks HTTPS: the probes of every program's manifest ask by HTTPS."""

from __future__ import annotations

import pytest

from isthmus.cli.main import main

AT = "/etc/isthmus/health"
FLAGS = (f"--health-cert={AT}/tls.crt", f"--health-key={AT}/tls.key")
MANIFESTS = {
    "agent": ("--as=daemonset", "--proxy-server-host=h", f"--ca-cert={AT}/ca.crt",
              f"--agent-cert={AT}/a.crt", f"--agent-key={AT}/a.key"),
    "server": ("--as=deployment", "--secret=files"),
    "apiserver-proxy": ("--as=static-pod", "--upstream=h:6443", f"--ca-cert={AT}/ca.crt"),
    "sidecar": ("--mode=socks5", "--workload=x", "--secret=files"),
}  # fmt: skip


@pytest.mark.parametrize("program", MANIFESTS)
def test_probes_follow(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    def schemes(*flags: str) -> int:
        assert main(["manifest", program, *MANIFESTS[program], *flags]) == 0
        text = capsys.readouterr().out
        assert ("/etc/isthmus/health/tls.key" in text) is bool(flags)
        return text.count("scheme: HTTPS")

    assert (schemes(), schemes(*FLAGS)) == (0, 2)
