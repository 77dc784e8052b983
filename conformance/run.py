"""``make conformance``: Kubernetes' own e2e tests against the lab's cluster, and a control run.

How to read what it writes: docs/conformance.md.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from conformance.report import FAILED, Round, markdown, ours, read
from conformance.selections import SELECTIONS
from conformance.variants import MASTER, Variant, variant_of
from isthmus.errors import ConfigError
from isthmus.frame.signals import noting_signals
from isthmus.lab import catalog, fabric
from isthmus.lab.kubernetes import bundle
from isthmus.lab.kubernetes.programs import CONFORMANCE, E2E, GINKGO, KUBERNETES, NotBuiltError
from isthmus.lab.processes import for_people, on_host
from isthmus.lab.stage import LabError, LabStage, standing

TOPOLOGY = "kubernetes"
WHOLE = ("cli", "webhooks", "network", "parallel", "serial")
_REGISTRIES = (
    "promoterE2eRegistry", "buildImageRegistry", "gcEtcdRegistry", "gcRegistry",
    "sigStorageRegistry", "privateRegistry", "dockerLibraryRegistry", "cloudProviderGcpRegistry",
)  # fmt: skip
_SPEC_LIMIT = "90m"


def say(text: str) -> None:
    print(f"conformance: {text}", flush=True)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m conformance.run", description=__doc__)
    parser.add_argument("--only", metavar="NAME,…", default="", help=f"of {', '.join(SELECTIONS)}")
    parser.add_argument("--focus", metavar="REGEX", help="these tests instead of a selection's")
    parser.add_argument("--mode", choices=["nftables", "iptables"], action="append", default=[])
    parser.add_argument("--egress", choices=["GRPC", "HTTPConnect"], default="GRPC")
    parser.add_argument("--no-control", action="store_true", help="leave the control run out")
    parser.add_argument("--build", action="store_true", help="build what is needed, and end")
    parser.add_argument("--output", metavar="DIR", type=Path, default=Path("build/conformance"))
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Run what was asked for; 1 if a test failed that passes in the control run."""
    asked = parse(arguments)
    names = tuple(filter(None, asked.only.split(","))) or WHOLE
    if unknown := [name for name in names if name not in SELECTIONS]:
        sys.exit(f"no selection {unknown[0]}; there are {', '.join(SELECTIONS)}")
    modes = asked.mode or ["nftables"]
    variants = [Variant(mode=mode, egress=asked.egress) for mode in modes]
    if not asked.no_control:
        variants.append(Variant(mode=modes[0], direct=True))
    try:
        bundle.check()
        built = bundle.build(say, more=CONFORMANCE)
    except (ConfigError, NotBuiltError) as exc:
        sys.exit(f"conformance: {exc}")
    if asked.build:
        return 0
    paths = [*map(str, built.directories), os.environ.get("PATH", os.defpath)]
    os.environ["PATH"] = os.pathsep.join(paths)
    rounds: list[Round] = []
    try:
        for variant in variants:
            rounds += _variant(variant, built, names, asked)
    except LabError as exc:
        sys.exit(f"conformance: {exc}")
    finally:
        if rounds:
            text = markdown(rounds, KUBERNETES)
            (asked.output / "report.md").write_text(text)
            print(text, end="")
    return 1 if ours(rounds) else 0


def _variant(
    variant: Variant, built: bundle.Built, names: Sequence[str], asked: argparse.Namespace
) -> list[Round]:
    source = catalog.text(TOPOLOGY)
    topology = variant_of(catalog.parse(TOPOLOGY, source), variant)
    found = []
    say(f"{variant.name}: bringing the cluster up")
    began = time.monotonic()
    with (
        noting_signals() as told,
        standing(
            topology, source, firewall=fabric.find_firewall(), without=(), told=told,
            progress=lambda what: None, built=built,
        ) as stage,
    ):  # fmt: skip
        say(f"{variant.name}: up after {time.monotonic() - began:.0f} s")
        for name in names:
            found.append(_round(stage, variant, name, asked))
            stage.wait(0)
    return found


def _round(stage: LabStage, variant: Variant, name: str, asked: argparse.Namespace) -> Round:
    folder = asked.output / f"{variant.name.replace(', ', '-').replace(' ', '-')}-{name}"
    folder.mkdir(parents=True, exist_ok=True)
    registries = (folder / "registries.yaml").resolve()
    registries.write_text("".join(f"{key}: localhost\n" for key in _REGISTRIES))
    chosen = SELECTIONS[name]
    junit = folder / "junit.xml"
    junit.unlink(missing_ok=True)
    kubeconfig = for_people(stage.lab, stage.topology)["KUBECONFIG"]
    argv = [
        *("nice", "-n", "5", str(GINKGO.path("ginkgo")), f"--procs={chosen.procs}", "--no-color"),
        # As in Kubernetes' own CI: what passes the second time is no failure.
        *("--flake-attempts=2", f"--timeout={_SPEC_LIMIT}"),
        f"--focus={asked.focus or chosen.focus}",
        *(f"--skip={chosen.skip}", f"--output-dir={folder.resolve()}", "--junit-report=junit.xml"),
        *(str(E2E.path("e2e.test")), "--", "--provider=skeleton", f"--kubeconfig={kubeconfig}"),
        *("--num-nodes=2", "--dns-domain=cluster.local", "--disable-log-dump"),
        *("--allowed-not-ready-nodes=0", "--system-pods-startup-timeout=2m"),
    ]
    environment = {
        **for_people(stage.lab, stage.topology),
        "KUBE_TEST_REPO_LIST": str(registries),
        "HOME": str(folder.resolve()),
    }
    began = time.monotonic()
    with closing((folder / "log").open("wb")) as log:
        process = subprocess.Popen(
            on_host(stage.lab, MASTER, argv), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            cwd=folder, env=environment, start_new_session=True,
        )  # fmt: skip
        try:
            while process.poll() is None:
                stage.wait(1.0)
        finally:
            process.kill()
            process.wait()
    if not junit.exists():
        said = (folder / "log").read_text(errors="replace")[-500:]
        raise LabError(f"{name}: e2e.test wrote no results: {said}")
    done = Round(
        selection=name, variant=variant.name, direct=variant.direct, results=read(junit),
        took_s=time.monotonic() - began,
    )  # fmt: skip
    failed = len(done.of(FAILED))
    say(f"{variant.name}: {name}: {len(done.results)} tests, {failed} failed, {done.took_s:.0f} s")
    for result in done.of(FAILED):
        say(f"  FAIL {result.name}: {result.why}")
    return done


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
