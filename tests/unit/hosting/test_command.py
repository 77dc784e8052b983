"""``isthmus publish``: what it prints, writes and answers, for the examples and for wrong files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from isthmus.cli.main import main
from isthmus.lab.reading import read

EXAMPLES = Path(__file__).parents[3] / "examples" / "publishing"
PUBLIC = EXAMPLES / "public-loadbalancer.yaml"
PRIVATE = EXAMPLES / "private-route.yaml"
NODES = EXAMPLES / "nodeport-baremetal.yaml"
ALL = sorted(EXAMPLES.glob("*.yaml"))


def publish(capsys: pytest.CaptureFixture[str], *args: object) -> tuple[int, str, str]:
    code = main(["publish", *map(str, args)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def changed(tmp_path: Path, source: Path, old: str, new: str) -> Path:
    text = source.read_text()
    assert old in text
    path = tmp_path / "changed.yaml"
    path.write_text(text.replace(old, new))
    return path


def test_a_plan_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = publish(capsys, "plan", PRIVATE, "-o", "json")
    plan: dict[str, Any] = json.loads(out)
    assert (code, plan["name"], plan["access"]) == (0, "autumn", "Private")
    assert plan["controlPlaneNamespace"] == "clusters-autumn"
    (api,) = [each for each in plan["endpoints"] if each["name"] == "kube-apiserver-internal"]
    assert api == {
        "service": "APIServer",
        "name": "kube-apiserver-internal",
        "strategy": "Route",
        "address": "api.autumn.hypershift.local",
        "port": 443,
        "object": "Route/kube-apiserver-internal",
        "through": "Service/private-router",
        "sni": "api.autumn.hypershift.local",
        "visibleFrom": ["guest VPC", "management cluster", "control plane namespace"],
        "restricted": False,
    }
    nodes = {each["service"]: each["at"] for each in plan["needs"] if each["who"] == "node"}
    assert nodes["APIServer"] == "api.autumn.hypershift.local:443"
    assert "changes" not in plan


@pytest.mark.parametrize("file", ALL, ids=lambda path: path.stem)
@pytest.mark.parametrize("columns", ["80", "140"])
def test_a_plan_for_people(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, file: Path, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    code, out, _ = publish(capsys, "plan", file)
    assert code == 0
    for text in ("APIServer", "not published", "Must reach", "kubectl"):
        assert text in out
    assert ("object, through" in out) is (columns == "140")
    assert "…" not in out  # nothing is cut off


def test_a_picture_is_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "plan.svg"
    assert publish(capsys, "plan", PUBLIC, "--svg", path)[0] == 0
    assert path.read_text().startswith("<svg")
    code, _, err = publish(capsys, "plan", PUBLIC, "--svg", tmp_path / "no" / "plan.svg")
    assert (code, err) == (
        2,
        f"isthmus: --svg={tmp_path}/no/plan.svg: No such file or directory\n",
    )


def test_changes_in_order(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    new = changed(tmp_path, PUBLIC, "Access: Public", "Access: PublicAndPrivate")
    code, out, _ = publish(capsys, "plan", new, "--from", PUBLIC, "-o", "json")
    steps = json.loads(out)["changes"]
    assert code == 0
    made = [each["what"] for each in steps if each["act"] == "create"]
    assert "Service/kube-apiserver-private" in made and "Service/private-router" in made
    assert all(each.keys() == {"act", "what", "says", "interrupts"} for each in steps)
    code, out, _ = publish(capsys, "plan", PUBLIC, "--from", PUBLIC)
    assert code == 0 and "nothing changes" in out


def test_a_change_that_is_refused_is_another_exit_code(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, _ = publish(capsys, "plan", PRIVATE, "--from", PUBLIC)
    assert code == 1 and "refuse" in out


@pytest.mark.parametrize(("file", "code"), [(PRIVATE, 0), (NODES, 0), (PUBLIC, 1)])
def test_check_says_what_is_worth_knowing(
    capsys: pytest.CaptureFixture[str], file: Path, code: int
) -> None:
    found, out, _ = publish(capsys, "check", file, "-o", "json")
    weights = {each["weight"] for each in json.loads(out)}
    assert found == code and ("warning" in weights) is bool(code)
    found, out, _ = publish(capsys, "check", file)
    assert found == code
    assert out.startswith(f"{file}:") if code else out == f"{file}: ok\n"


def test_warnings_are_ignored_by_their_rules(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = publish(capsys, "check", PUBLIC, "-o", "json")
    rules = {each["rule"] for each in json.loads(out)}
    ignored = [word for rule in rules for word in ("--ignore", rule)]
    assert publish(capsys, "check", PUBLIC, "-o", "json", *ignored)[:2] == (0, "[]\n")


def test_errors_are_all_said_with_their_places(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    text = PRIVATE.read_text().replace("hostname: oauth.", "hostname: api.")
    path = tmp_path / "wrong.yaml"
    path.write_text(text.replace("service: Ignition", "service: Konnectivity"))
    code, out, _ = publish(capsys, "check", path, "--ignore", "hostname-once", "-o", "json")
    found = {each["rule"]: each for each in json.loads(out)}
    assert code == 2
    assert {"hostname-once", "required-services", "service-once"} <= found.keys()
    lines = text.splitlines()
    assert "hostname: api." in lines[found["hostname-once"]["line"] - 1]
    for command in (("plan",), ("render",), ("explain",)):
        code, out, err = publish(capsys, *command, path)
        assert (code, out) == (2, "")
        assert err.count(f"{path}:") >= 3 and ": error: spec.services" in err


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"kind: Pod\n", "must be HostedCluster"),
        (b"\xff", "not UTF-8"),
        (b"#" * (4 * 1024 * 1024 + 1), "larger than"),
        (None, "no such file"),
    ],
)
def test_a_file_that_is_none_is_one_sentence(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: bytes | None, says: str
) -> None:
    path = tmp_path / "cluster.yaml"
    if text is not None:
        path.write_bytes(text)
    code, _, err = publish(capsys, "plan", path)
    assert code == 2 and says in err and err.count("\n") == 1


@pytest.mark.parametrize("file", ALL, ids=lambda path: path.stem)
def test_everything_is_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, file: Path
) -> None:
    code, out, err = publish(capsys, "render", file, "--directory", tmp_path / "out")
    assert (code, err) == (0, "")
    written = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert sorted(Path(line).name for line in out.splitlines()) == written
    routes = {each for each in written if each.startswith("sni-routes.")}
    assert {*written} - routes == {
        "apiserver-proxy.yaml",
        "konnectivity-agent.yaml",
        "konnectivity-egress.yaml",
        "konnectivity-local.yaml",
        "konnectivity-server.patch.yaml",
        "kube-apiserver-proxy.yaml",
        "lab.yaml",
        "names.yaml",
        "objects.yaml",
        *(["router.yaml"] if file == PRIVATE else []),
    }
    assert len(routes) == (0 if file == NODES else 1)
    read((tmp_path / "out" / "lab.yaml").read_text(), name="lab", source="lab.yaml")


def test_pods_are_kept_away_from_the_management_cluster(
    capsys: pytest.CaptureFixture[str],
) -> None:
    where = ("--management-api=10.0.0.1", "--management-network=10.128.0.0/14")
    code, out, _ = publish(capsys, "render", PRIVATE, *where)
    assert code == 0
    made = {each["metadata"]["name"]: each for each in yaml.safe_load_all(out)}
    for name in ("management-api", "router-egress"):
        blocks = [
            peer["ipBlock"]
            for rule in made[name]["spec"]["egress"]
            for peer in rule["to"]
            if "ipBlock" in peer
        ]
        assert blocks == [{"cidr": "0.0.0.0/0", "except": ["10.0.0.1/32", "10.128.0.0/14"]}]


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--management-api=kas.example.com", "is not an address"),
        ("--management-api=::ffff:10.0.0.1", "IPv4 address in IPv6 notation"),
        ("--management-network=10.0.0.0", "its prefix is missing"),
        ("--management-network=0.0.0.0/0", "is every address"),  # no NetworkPolicy could say it
    ],
)
def test_a_wrong_management_cluster_is_one_sentence(
    capsys: pytest.CaptureFixture[str], flag: str, said: str
) -> None:
    code, _, err = publish(capsys, "plan", PRIVATE, flag)
    assert code == 2
    assert flag in err and said in err and err.count("\n") == 1


def test_one_part_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = publish(capsys, "render", PUBLIC)
    kinds = {each["kind"] for each in yaml.safe_load_all(out)}
    assert code == 0 and kinds == {"NetworkPolicy", "Service", "Route"}
    args = ("--part", "konnectivity-agent.yaml", "--image", "example.com/isthmus:7")
    code, out, _ = publish(capsys, "render", PUBLIC, *args)
    assert code == 0 and "image: example.com/isthmus:7" in out
    assert "--proxy-server-host=konnectivity.spring.example.com" in out
    code, _, err = publish(capsys, "render", PUBLIC, "--part", "konnectivity-agnt.yaml")
    assert code == 2 and "there is no 'konnectivity-agnt.yaml', but there are objects.yaml," in err


def test_what_the_platform_chooses_is_asked_for(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = changed(tmp_path, NODES, "          port: 30645\n", "")
    code, out, err = publish(capsys, "render", path, "--directory", tmp_path / "out")
    assert code == 0 and "konnectivity-agent.yaml" not in out
    assert "--address konnectivity-server=HOST:PORT" in err
    part = ("--part", "konnectivity-agent.yaml")
    assert publish(capsys, "render", path, *part)[0] == 2
    address = ("--address", "konnectivity-server=192.168.100.10:31001")
    code, out, _ = publish(capsys, "render", path, *part, *address)
    assert code == 0 and "--proxy-server-port=31001" in out


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--address", "kube-apiserver"), "--address takes ENDPOINT=HOST[:PORT]"),
        (("--address", "no=192.0.2.1"), "--address: there is no endpoint 'no'"),
        (("--address", "kube-apiserver=a..b"), "--address: kube-apiserver=a..b: not a"),
        (
            ("--address", "kube-apiserver=192.0.2.1", "--address", "kube-apiserver=192.0.2.2"),
            "--address: kube-apiserver has two, 192.0.2.1 and 192.0.2.2",
        ),
        (("--nodes-from", "nat"), "--nodes-from takes an address"),
        (("--replicas", "0"), "0 is not in the range"),
        (("--image", "a b"), "--image takes an image"),
        (("--directory", "/dev/null/here"), "--directory=/dev/null/here"),
    ],
)
def test_wrong_choices_are_one_sentence(
    capsys: pytest.CaptureFixture[str], args: tuple[str, ...], says: str
) -> None:
    code, _, err = publish(capsys, "render", PUBLIC, *args)
    assert code == 2 and says in err and err.count("\n") == 1


def test_explain_tells_it(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = publish(capsys, "explain", PRIVATE)
    assert code == 0 and out.startswith("autumn is on AWS and Private")


def test_what_no_lab_can_have_is_still_published(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The first address of a network is its gateway's in a lab; elsewhere it may be a node's."""
    path = changed(tmp_path, NODES, "address: 192.168.100.10", "address: 10.0.0.1")
    code, out, err = publish(capsys, "render", path)
    assert (code, err) == (0, "") and "nodePort: 30643" in out
    code, out, err = publish(capsys, "render", path, "--directory", tmp_path / "out")
    assert code == 0 and "objects.yaml" in out and "lab.yaml" not in out
    assert err.startswith("isthmus: lab.yaml: ") and "10.0.0.1" in err and err.count("\n") == 1
    code, out, err = publish(capsys, "render", path, "--part", "lab.yaml")
    assert (code, out) == (2, "") and "10.0.0.1" in err
    code, out, err = publish(capsys, "render", NODES, "--nodes-from", "nat")
    assert (code, out) == (2, "") and "--nodes-from takes an address" in err


def test_a_rule_that_is_none_cannot_be_ignored(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = publish(capsys, "check", PUBLIC, "--ignore", "cidrs-for-node")
    assert (code, out) == (2, "")
    assert "there is no rule 'cidrs-for-node', did you mean cidrs-for-nodes?" in err


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("networking: {networkType: OVNKubernets}", "not 'OVNKubernets', did you mean"),
        (
            "networking: {networkType: Cilium}",
            "must be OVNKubernetes, OpenShiftSDN, Calico or Other",
        ),
        ("etcd: {managementType: managed}", "must be Managed or Unmanaged, not 'managed'"),
        ("olmCatalogPlacement: Guest", "must be management or guest, not 'Guest'"),
        ("secretEncryption: {type: aesgcm}", "must be kms or aescbc, not 'aesgcm'"),
    ],
)
def test_a_word_that_the_api_does_not_have_is_refused(
    field: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = yaml.safe_load(PUBLIC.read_text())
    for key, value in yaml.safe_load(field).items():
        document["spec"].setdefault(key, {})
        document["spec"][key] = (
            {**document["spec"][key], **value} if isinstance(value, dict) else value
        )
    path = tmp_path / "cluster.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    code, _, err = publish(capsys, "check", path)
    assert code == 2
    assert words in err
