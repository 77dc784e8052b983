"""``isthmus resolve``: its flags, and what it prints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from isthmus.cli.main import main

SERVER = "--konnectivity-uds=/nowhere.sock"


def test_a_name_needs_nobody_where_the_resolver_is_off(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["resolve", "api.web", SERVER, "--disable-resolver", "-o", "json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [step["source"] for step in answer["steps"]] == ["resolver off", "agent"]
    assert (answer["way"], answer["dialed"]) == ("through the tunnel", ["api.web"])


@pytest.mark.parametrize(
    ("no_proxy", "way"),
    [
        ("", "by the proxy https://proxy.example:3128"),
        (".amazonaws.com", "directly"),
    ],
)
def test_a_cloud_api_is_shown_with_its_proxy(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, no_proxy: str, way: str
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "https://me:secret@proxy.example:3128")
    monkeypatch.setenv("NO_PROXY", no_proxy)
    cloud = ["--connect-directly-to-cloud-apis", "--disable-resolver"]
    assert main(["resolve", "s3.amazonaws.com", SERVER, *cloud]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "asked      outcome  addresses  detail",
        "cloud API  decided             ends in .amazonaws.com",
        "",
        f"dialed {way}: s3.amazonaws.com",
    ]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([""], "NAME is empty"),
        (["a b"], "NAME 'a b': not a host name or address: 'a b'"),
        (["a", "--sidecar=https", "--disable-resolver"], "--disable-resolver is not a flag of the"),
        (["a", "--http-proxy=http://p:1"], "--http-proxy is not a flag of the socks5 sidecar"),
        (["a", "--sidecar=https", "--https-proxy=ftp://p"], "--https-proxy: the scheme of a proxy"),
        (["a", "--cloud-api-suffix=example.com"], "--cloud-api-suffix example.com needs a leading"),
        (["a", "--kubeconfig=/nowhere"], "cannot read --kubeconfig /nowhere"),
        (["a", "--sidecar=other"], "invalid value for '--sidecar'"),
    ],
)
def test_what_is_wrong_is_one_sentence(
    capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    assert main(["resolve", *arguments, SERVER]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"isthmus: {sentence}")
    assert said.err.count("\n") == 1


def test_a_cluster_that_does_not_answer_is_no_answer(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        json.dumps(
            {
                "current-context": "c",
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
                "users": [{"name": "u", "user": {}}],
            }
        )
    )
    flags = [f"--kubeconfig={kubeconfig}", "--resolve-from-guest-cluster-dns"]
    assert main(["resolve", "api.web", SERVER, "-o", "json", *flags]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert [step["outcome"] for step in answer["steps"]] == ["failed", "failed"]
    assert answer["failure"] == "name not resolved"
    assert "127.0.0.1:1" in answer["detail"]
