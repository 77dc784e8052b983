"""``isthmus publish convert``, and both models side by side in ``explain``."""

from __future__ import annotations

from pathlib import Path

import pytest
from clusters import LB, NODE_PORT, cluster

from isthmus.cli.main import main
from isthmus.errors import ConfigError
from isthmus.hosting.comparison import compare, comparison_lines
from isthmus.hosting.convert import convert
from isthmus.hosting.document import read
from isthmus.hosting.model import ControlPlaneService, EndpointAccess, Platform, Strategy
from isthmus.hosting.models import V1ALPHA1, V1BETA1

EXAMPLES = Path(__file__).parents[3] / "examples" / "publishing"
OLD = EXAMPLES / "v1alpha1" / "private.yaml"
NEW = EXAMPLES / "private-route.yaml"
KUBEVIRT = """\
apiVersion: hypershift.openshift.io/v1beta1
kind: HostedCluster
metadata: {name: a}
spec:
  platform: {type: KubeVirt}
  services: [{service: Ignition, servicePublishingStrategy: {type: Route}}]
"""


def publish(capsys: pytest.CaptureFixture[str], *args: object) -> tuple[int, str, str]:
    code = main(["publish", *map(str, args)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_only_what_differs_is_written_otherwise(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = publish(capsys, "convert", OLD)
    before, after = OLD.read_text().splitlines(), out.splitlines()
    assert code == 0 and len(before) == len(after)
    assert [new for old, new in zip(before, after, strict=True) if old != new] == [
        "apiVersion: hypershift.openshift.io/v1beta1",
        '    machineNetwork: [{cidr: "10.0.0.0/16"}]',
        '    clusterNetwork: [{cidr: "10.132.0.0/14"}]',
        '    serviceNetwork: [{cidr: "172.31.0.0/16"}]',
    ]
    assert "isthmus: spec.networking.podCIDR: becomes clusterNetwork\n" in err
    seen = "everybody, by the public ingress shard (v1alpha1); the guest's network (v1beta1)"
    assert f"isthmus: OAuthServer by Route: {seen}\n" in err
    assert "isthmus: OVNSbDb by Route: the guest's network (v1alpha1); no effect (v1beta1)" in err


def test_what_the_other_version_wants_is_added(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = publish(capsys, "convert", NEW, "--to", "v1alpha1")
    assert code == 0 and "OVNSbDb, servicePublishingStrategy: {type: Route}} added" in err
    added = "    - {service: OVNSbDb, servicePublishingStrategy: {type: Route}}"
    assert out.replace(f"{added}\n", "").replace("v1alpha1", "v1beta1") == NEW.read_text()
    found = convert(KUBEVIRT, "k", V1ALPHA1)
    for service in ("APIServer", "OAuthServer", "Konnectivity", "OVNSbDb"):  # as the webhook does
        assert f"{{service: {service}, servicePublishingStrategy: " in found.text


REFUSED = [
    (NEW, "  platform:\n", "  capabilities: {}\n  platform:\n", "v1alpha1 has no such field"),
    (OLD, "  platform:\n", "  configuration: {items: []}\n  platform:\n", "write each object's"),
    (OLD, "      region:", "      roles: [{arn: x}]\n      region:", "spec.platform.aws.rolesRef"),
    (OLD, "    podCIDR:", "    clusterNetwork: []\n    podCIDR:", "this list and podCIDR"),
]  # fmt: skip


@pytest.mark.parametrize(("source", "old", "new", "says"), REFUSED)
def test_what_has_no_counterpart_is_refused_with_its_place(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, source: Path, old: str, new: str, says: str
) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(source.read_text().replace(old, new))
    line = path.read_text()[: path.read_text().index(new)].count("\n") + 1
    code, out, err = publish(capsys, "convert", path)
    assert (code, out) == (2, "") and says in err
    assert err.startswith(f"isthmus: {path}:{line}: error: spec.") and err.count("\n") == 1


def test_a_strategy_of_one_version_alone_is_refused(tmp_path: Path) -> None:
    text = OLD.read_text().replace(
        "        type: Route\n        route:\n          hostname: konnectivity",
        "        type: LoadBalancer\n        loadBalancer:\n          hostname: konnectivity",
    )
    (refused,) = convert(text, "c", V1BETA1).refused
    assert refused.rule == "aws-route" and refused.place.field.startswith("spec.services[2].")
    wrong = convert(text.replace("type: S3", "type: Route"), "c", V1BETA1)
    assert not wrong.text and wrong.refused


def test_what_is_beside_it_is_left_and_named() -> None:
    pool = "apiVersion: hypershift.openshift.io/v1alpha1\nkind: NodePool\n---\n"
    found = convert(f"kind: Namespace\n---\n{pool}{OLD.read_text()}", "c", V1BETA1)
    assert pool in found.text
    assert [edit for edit in found.edits if edit.startswith("'NodePool' at line 3 ")]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (OLD.read_text(), "c: .*hypershift.openshift.io/v1alpha1$"),
        (NEW.read_text().replace("services:", "services: &x"), "without anchors"),
        (KUBEVIRT.rpartition("  services")[0], "without anchors"),
        (NEW.read_text().replace("v1beta1", "v2"), "must be hypershift.openshift.io/v1beta1 or"),
    ],
)
def test_what_cannot_be_converted_is_one_sentence(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        convert(text, "c", V1ALPHA1)
    assert str(caught.value).count("\n") == 0


def test_many_fields_without_counterpart_take_no_time() -> None:
    """Each is compared with the fields above it; what they have in common is said once."""
    entry = "        - {arn: a, name: b, namespace: c}\n"
    text = OLD.read_text().replace("      region:", f"      roles:\n{entry * 400}      region:")
    (refused,) = convert(text, "c", V1BETA1).refused
    assert refused.place.field == "spec.platform.aws.roles"


@pytest.mark.parametrize("file", [OLD, NEW], ids=lambda path: path.stem)
def test_both_models_are_side_by_side(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    code, out, _ = publish(capsys, "explain", file)
    version = "v1alpha1" if file is OLD else "v1beta1"
    applies = f"hypershift.openshift.io/{version}, so the column {version} applies:"
    assert code == 0 and applies in out
    shard = "everybody, by the public ingress shard"
    assert "  OAuthServer   Route" in out and shard in out
    ovn = [line for line in out.splitlines() if line.startswith("  OVNSbDb")]
    assert ovn[0].split()[1] == ("Route" if file is OLD else "-")
    assert "no effect" in ovn[0] or "must be listed" in ovn[0]


def test_the_comparison_says_what_each_version_makes_of_an_entry() -> None:
    given = cluster(
        Platform.AWS,
        EndpointAccess.PUBLIC_AND_PRIVATE,
        {
            ControlPlaneService.KONNECTIVITY: LB,
            ControlPlaneService.OAUTH_SERVER: NODE_PORT,
            ControlPlaneService.OVN_SB_DB: Strategy.NONE,
            ControlPlaneService.OIDC: Strategy.S3,
        },
    )
    found = {each.service.value: tuple(each.shown.values()) for each in compare(given)}
    both = "everybody, and the guest's network separately"
    assert found["APIServer"] == (both, both)
    assert found["Konnectivity"] == ("everybody", "the guest's network")
    assert found["OAuthServer"] == ("whoever reaches the management cluster's nodes",) * 2
    assert found["OVNSbDb"] == ("no effect", "not published")
    assert found["OIDC"] == ("no effect", "everybody, from a bucket")


def test_what_the_other_version_refuses_is_said_beside_the_columns() -> None:
    text = NEW.read_text().replace("type: AWS\n    aws:", "type: GCP\n    gcp:")
    text = text.replace("  platform:\n", "  capabilities: {}\n  platform:\n")
    lines = list(comparison_lines(read(text, "c")))
    assert "  v1alpha1 refuses spec.platform.type: v1alpha1 has no platform GCP" in lines
    assert "  v1alpha1 refuses spec.capabilities: v1alpha1 has no such field" in lines
    assert not [line for line in lines if "v1beta1 refuses" in line]
