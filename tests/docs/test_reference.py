"""Pages that are written from declarations are what would be written now."""

from __future__ import annotations

import re
import sys

import pytest
from doc_blocks import ROOT

sys.path.insert(0, str(ROOT / "tools"))

import reference_docs

from isthmus.programs.agent.settings import AgentSettings
from isthmus.programs.server.settings import ServerSettings
from isthmus.settings.options import options_of

# Every flag of konnectivity's two programs, from their options.go (2026-09-18), logging left out.
SERVER = """
server-cert server-key server-ca-cert cluster-cert cluster-key cluster-ca-cert mode uds-name
delete-existing-uds-file server-port server-bind-address agent-port agent-bind-address health-port
health-bind-address admin-port admin-bind-address keepalive-time frontend-keepalive-time
enable-profiling enable-contention-profiling server-id server-count agent-namespace
agent-service-account authentication-audience kubeconfig kubeconfig-qps kubeconfig-burst
kube-api-content-type proxy-strategies cipher-suites tls-min-version xfr-channel-size
frontend-write-channel-size enable-lease-controller lease-namespace lease-label
graceful-shutdown-timeout backend-dial-timeout warn-on-channel-limit v
"""
AGENT = """
agent-cert agent-key ca-cert proxy-server-host proxy-server-port alpn-proto health-server-host
health-server-port admin-bind-address admin-server-port enable-profiling
enable-contention-profiling agent-id agent-identifiers sync-interval sync-interval-cap
probe-interval keepalive-time service-account-token-path warn-on-channel-limit sync-forever
xfr-channel-size count-server-leases lease-namespace lease-label-selector lease-label
server-count-source kubeconfig kube-api-content-type v
"""


# klog's, of v2.140.0, and the one that component-base had besides.
KLOG = """
add-dir-header alsologtostderr alsologtostderrthreshold legacy-stderr-threshold-behavior
log-backtrace-at log-dir log-file log-file-max-size logtostderr one-output skip-headers
skip-log-headers stderrthreshold vmodule log-flush-frequency
"""
FLAG = re.compile(r"`--([a-z-]+)`")
VERDICTS = {"same", "better:", "not"}
PAGES = (
    "docs/migrate-from-konnectivity.md",
    "docs/reference/audit-fields.md",
    "docs/reference/commands.md",
    "docs/reference/failure-codes.md",
    "docs/reference/files.md",
)


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_current(name: str) -> None:
    written = reference_docs.documents()
    assert {str(path.relative_to(ROOT)) for path in written} == set(PAGES)
    assert (ROOT / name).read_text("utf-8") == written[ROOT / name], (
        "run: python tools/reference_docs.py"
    )


@pytest.mark.parametrize(
    ("settings", "known"),
    [(ServerSettings, SERVER), (AgentSettings, AGENT)],
    ids=["server", "agent"],
)
def test_every_flag_of_go_is_in_the_table(settings: type, known: str) -> None:
    flags = known.split()
    *rows, logging = reference_docs.flags_of_go(settings).splitlines()[2:]
    listed = [name for row in rows for name in FLAG.findall(row.split("|")[1])]
    # All of them, each once, and none of ours.
    assert sorted(listed) == sorted(flags)
    assert all(row.split("|")[3].split()[0] in VERDICTS for row in (*rows, logging))
    names = {name for option in options_of(settings) for name in (option.flag, *option.aliases)}
    assert set(flags) <= names
    assert sorted(FLAG.findall(logging)) == sorted(KLOG.split())


def test_a_file_that_nobody_explained_is_noticed() -> None:
    option = next(one for one in options_of(ServerSettings) if one.flag == "policy-file")
    saved = reference_docs.READ.pop("policy-file")
    try:
        with pytest.raises(KeyError, match="does not say when --policy-file of server is read"):
            reference_docs._when("server", option)
    finally:
        reference_docs.READ["policy-file"] = saved


def test_every_page_is_in_the_list_of_pages() -> None:
    """The menu of the site has them all, says mkdocs; who reads files has docs/index.md."""
    index = (ROOT / "docs" / "index.md").read_text("utf-8")
    pages = [str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")]
    assert [page for page in pages if page != "index.md" and f"({page})" not in index] == []
    menu = re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text("utf-8"))
    assert sorted(menu) == sorted(pages)
