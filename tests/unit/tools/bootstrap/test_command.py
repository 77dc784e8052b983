"""``isthmus bootstrap kubeconfig`` and ``apiserver``, and what is wrong with a check.

A check itself is tests/integration's part.
"""

from __future__ import annotations

import base64
import json
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from isthmus.cli.main import main
from isthmus.kube.kubeconfig import read_config
from isthmus.tools.pki import making as pki

ADDRESS = "--bind-address=10.0.0.1"
TOKEN = "abcdef.0123456789abcdef"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> pki.PkiFiles:
    return pki.init(tmp_path_factory.mktemp("pki"), server_names=("api.example.com", "kubernetes"))


@pytest.fixture
def token(tmp_path: Path) -> str:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    return f"--token-file={path}"


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    code = main(["bootstrap", *args])
    found = capsys.readouterr()
    return code, found.out, found.err


def made(capsys: pytest.CaptureFixture[str], *args: str) -> dict[str, Any]:
    code, out, err = run(capsys, "kubeconfig", "-", *args)
    assert code == 0, err
    found: dict[str, Any] = yaml.safe_load(out)
    return found


def refused(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    code, out, err = run(capsys, *args)
    assert (code, out, err.count("\n")) == (2, "", 1), err
    return err.removeprefix("isthmus: ").rstrip()


def test_a_kubeconfig_carries_all_that_it_needs(
    capsys: pytest.CaptureFixture[str], files: pki.PkiFiles, token: str
) -> None:
    found = made(capsys, ADDRESS, f"--ca-cert={files.ca_cert}", token)
    cluster = found["clusters"][0]["cluster"]
    assert cluster["server"] == "https://10.0.0.1:6443"
    assert base64.b64decode(cluster["certificate-authority-data"]) == files.ca_cert.read_bytes()
    assert found["users"][0]["user"] == {"token": TOKEN}
    assert found["current-context"] == found["contexts"][0]["name"]
    assert "tls-server-name" not in cluster


def test_an_ipv6_address_and_another_port(
    capsys: pytest.CaptureFixture[str], files: pki.PkiFiles, token: str
) -> None:
    args = ("--bind-address=fd00::0:1", "--local-port=7443", f"--ca-cert={files.ca_cert}", token)
    assert made(capsys, *args)["clusters"][0]["cluster"]["server"] == "https://[fd00::1]:7443"


def test_files_by_their_paths(
    capsys: pytest.CaptureFixture[str], files: pki.PkiFiles, token: str,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(files.directory)
    found = made(capsys, ADDRESS, "--by-path", "--ca-cert=ca.crt", token)
    assert found["clusters"][0]["cluster"]["certificate-authority"] == str(files.ca_cert)
    assert found["users"][0]["user"] == {"tokenFile": str(tmp_path / "token")}


def test_a_token_in_two_parts_and_a_certificate(
    capsys: pytest.CaptureFixture[str], files: pki.PkiFiles, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text(f"{TOKEN[7:]}\n")
    ca = f"--ca-cert={files.ca_cert}"
    args = (ADDRESS, ca, "--token-id=abcdef", f"--token-secret-file={secret}")
    assert made(capsys, *args)["users"][0]["user"] == {"token": TOKEN}
    pair = (f"--client-cert={files.client_cert}", f"--client-key={files.client_key}")
    user = made(capsys, ADDRESS, ca, *pair)["users"][0]["user"]
    assert base64.b64decode(user["client-key-data"]) == files.client_key.read_bytes()
    assert user.keys() == {"client-certificate-data", "client-key-data"}


def test_the_name_comes_from_the_certificate_if_the_address_is_not_in_it(
    capsys: pytest.CaptureFixture[str], files: pki.PkiFiles, token: str, tmp_path: Path
) -> None:
    ca = f"--ca-cert={files.ca_cert}"
    code, out, err = run(
        capsys, "kubeconfig", "-", ADDRESS, ca, token, f"--apiserver-cert={files.server_cert}"
    )
    assert code == 0
    assert yaml.safe_load(out)["clusters"][0]["cluster"]["tls-server-name"] == "kubernetes"
    assert "a kubelet that joins by a bootstrap kubeconfig forgets it" in err
    good = pki.init(tmp_path / "good", server_names=("kubernetes", "10.0.0.1"))
    found = made(capsys, ADDRESS, ca, token, f"--apiserver-cert={good.server_cert}")
    assert "tls-server-name" not in found["clusters"][0]["cluster"]


def test_the_file_is_private_whole_and_not_replaced_unasked(
    capsys: pytest.CaptureFixture[str], files: pki.PkiFiles, token: str, tmp_path: Path
) -> None:
    path = tmp_path / "kubeconfig"
    args = ("kubeconfig", str(path), ADDRESS, f"--ca-cert={files.ca_cert}", token)
    code, out, err = run(capsys, *args, "--tls-server-name=api.example.com")
    assert (code, out) == (0, "")
    assert "leads to https://10.0.0.1:6443" in err
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    access = read_config(str(path))
    assert access.config.cluster.server == "https://10.0.0.1:6443"
    assert access.server_name == "api.example.com"
    before = path.read_bytes()
    assert refused(capsys, *args) == f"{path}: already exists; replace it with --force"
    assert path.read_bytes() == before
    path.chmod(0o644)
    assert run(capsys, *args, "--force")[0] == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_bytes() != before
    assert sorted(each.name for each in tmp_path.iterdir()) == ["kubeconfig", "token"]


def test_a_link_that_leads_elsewhere_is_replaced_itself(
    capsys: pytest.CaptureFixture[str], files: pki.PkiFiles, token: str, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.write_text("precious")
    (tmp_path / "kubeconfig").symlink_to(other)
    args = (
        "kubeconfig",
        str(tmp_path / "kubeconfig"),
        ADDRESS,
        f"--ca-cert={files.ca_cert}",
        token,
    )
    assert "already exists" in refused(capsys, *args)
    assert run(capsys, *args, "--force")[0] == 0
    assert other.read_text() == "precious"


def signed(exp: datetime) -> str:
    body = base64.urlsafe_b64encode(json.dumps({"exp": exp.timestamp()}).encode()).decode()
    return f"e30.{body.rstrip('=')}.c2ln"


def test_what_is_wrong_with_files_is_one_sentence(
    capsys: pytest.CaptureFixture[str], files: pki.PkiFiles, token: str, tmp_path: Path
) -> None:
    now = datetime.now(UTC)
    old = pki.init(tmp_path / "old", days=1, now=now - timedelta(days=9))
    for name, text in {
        "empty": "", "no-pem": "no certificate", "no-token": "two words",
        "over": signed(now - timedelta(hours=1)), "bad-token": "ABCDEF.0123456789abcdef",
    }.items():  # fmt: skip
        (tmp_path / name).write_text(text)
    ca = f"--ca-cert={files.ca_cert}"
    pair = (f"--client-cert={files.client_cert}", f"--client-key={files.agent_key}")
    late = (f"--client-cert={old.client_cert}", f"--client-key={old.client_key}")

    def said(*args: str) -> str:
        return refused(capsys, "kubeconfig", "-", ADDRESS, *args)

    path = tmp_path / "no-pem"
    assert said(f"--ca-cert={path}", token) == f"--ca-cert {path}: contains no PEM certificate"
    assert "no such file" in said(f"--ca-cert={tmp_path}/nowhere", token)
    assert "the token expired on" in said(ca, f"--token-file={tmp_path / 'over'}")
    assert "it contains no token" in said(ca, f"--token-file={tmp_path / 'empty'}")
    assert "one word of ASCII" in said(ca, f"--token-file={tmp_path / 'no-token'}")
    assert "six small letters" in said(ca, f"--token-file={tmp_path / 'bad-token'}")
    assert "no such file" in said(ca, f"--token-file={tmp_path}/nowhere")
    assert "key does not match" in said(ca, *pair)
    assert "certificate expired on" in said(ca, *late)
    assert "certificate expired on" in said(ca, token, f"--apiserver-cert={old.server_cert}")


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        ((ADDRESS, "--ca-cert=x"), "no credentials for the kubelet: give --token-file,"),
        (
            (ADDRESS, "--ca-cert=x", "--token-id=abcdef"),
            "--token-id and --token-secret-file belong",
        ),
        (
            (ADDRESS, "--ca-cert=x", "--token-file=a", "--client-cert=b", "--client-key=c"),
            "--token-file and --client-cert exclude each other",
        ),
        (("--bind-address=::1", "--ca-cert=x"), "--bind-address ::1 is a loopback address"),
        (("--bind-address=name", "--ca-cert=x"), "--bind-address takes an IPv4 or IPv6 address"),
        ((ADDRESS, "--ca-cert="), "--ca-cert is empty"),
        ((ADDRESS,), "--ca-cert is missing"),
        (
            (ADDRESS, "--ca-cert=x", "--token-id=a", "--token-secret-file=b", "--by-path"),
            "--by-path needs --token-file",
        ),
        (
            (ADDRESS, "--ca-cert=x", "--token-file=t", "--tls-server-name=a", "--apiserver-cert=b"),
            "--tls-server-name and --apiserver-cert exclude each other",
        ),
    ],
)
def test_what_is_wrong_with_flags_is_one_sentence(
    args: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refused(capsys, "kubeconfig", "-", *args).startswith(sentence)


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        ((), "nothing to check: give --bind-address, or --kubeconfig of the kubelet"),
        ((ADDRESS, "--timeout=1"), "--timeout: "),
        ((ADDRESS, "--timeout=0s"), "--timeout must be longer than 0"),
        ((ADDRESS, "--agent-admin=x"), "--agent-admin: no port in 'x'"),
        ((ADDRESS, "--agent-admin-cert=x"), "--agent-admin-cert needs --agent-admin-key as well"),
        ((ADDRESS, "--kubeconfig=/nowhere"), "cannot read --kubeconfig /nowhere: no such file"),
        ((ADDRESS, "--ca-cert=/nowhere"), "cannot read --ca-cert /nowhere: no such file"),
        ((ADDRESS, "--tls-server-name=a b"), "--tls-server-name: not a host name"),
    ],
)
def test_a_check_that_cannot_be_made(
    args: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refused(capsys, "check", *args).startswith(sentence)


def test_a_kubeconfig_that_leads_to_a_name(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "kubeconfig"
    cluster = {"server": "https://api.example.com:6443"}
    content = {
        "clusters": [{"name": "a", "cluster": cluster}],
        "users": [{"name": "a", "user": {}}],
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
        "current-context": "a",
    }
    path.write_text(json.dumps(content))
    said = refused(capsys, "check", f"--kubeconfig={path}")
    assert said.endswith("which is not an agent's address: give --bind-address as well")


# kube-apiserver.


def apiserver(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    code, out, err = run(capsys, "apiserver", *args)
    assert code == 0, err
    return out


def test_flags_of_kube_apiserver(capsys: pytest.CaptureFixture[str]) -> None:
    args = (ADDRESS, "--target=6443:localhost:6443")
    assert apiserver(capsys, *args, "-o", "flags").split() == [
        "--advertise-address=10.0.0.1",
        "--secure-port=6443",
    ]
    flags = apiserver(capsys, *args, "--by-hand", "-o", "flags").split()
    assert flags[-1] == "--endpoint-reconciler-type=none"


def test_another_port_than_kube_apiservers_needs_endpoints_by_hand(
    capsys: pytest.CaptureFixture[str],
) -> None:
    args = ("--bind-address=fd00::1", "--target=7443:localhost:6443")
    flags = apiserver(capsys, *args, "-o", "flags").split()
    assert flags == [
        "--advertise-address=fd00::1",
        "--secure-port=6443",
        "--endpoint-reconciler-type=none",
    ]
    part, whole = yaml.safe_load_all(apiserver(capsys, *args, "-o", "yaml"))
    assert part["addressType"] == "IPv6"
    assert part["endpoints"][0]["addresses"] == ["fd00::1"]
    assert part["ports"][0]["port"] == whole["subsets"][0]["ports"][0]["port"] == 7443
    assert "the reconciler would write 6443" in apiserver(capsys, *args)


def test_explanations_are_comments(capsys: pytest.CaptureFixture[str]) -> None:
    args = (ADDRESS, "--target=6443:localhost:6443")
    text = apiserver(capsys, *args)
    assert "must have 10.0.0.1 among its names" in text
    bare = apiserver(capsys, *args, "-o", "yaml")
    assert list(yaml.safe_load_all(text)) == list(yaml.safe_load_all(bare))
    assert [each["kind"] for each in yaml.safe_load_all(bare)] == ["EndpointSlice", "Endpoints"]


def test_a_wrong_target_is_the_agents_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "apiserver", ADDRESS, "--target=6443")
    assert said.startswith("--target takes LOCAL_PORT:HOST:PORT")


def test_the_first_of_two_addresses_is_advertised(capsys: pytest.CaptureFixture[str]) -> None:
    both = "--bind-address=10.0.0.1,fd00::1"
    code, out, _ = run(capsys, "apiserver", both, "--target=6443:localhost:6443")
    said = " ".join(line.removeprefix("# ") for line in out.splitlines())
    assert code == 0 and "--advertise-address=10.0.0.1 " in said
    assert "must have 10.0.0.1 and fd00::1 among its names" in said
    assert "fd00::1 is for kubelets and other clients that are configured with it" in said
    for wrong in ("--bind-address=,", "--bind-address=10.0.0.1,10.0.0.2"):
        assert "--bind-address" in refused(capsys, "apiserver", wrong, "--target=1:localhost:1")
