"""The flags of the audit log and of tracing."""

from __future__ import annotations

import pytest

from isthmus.errors import ConfigError
from isthmus.programs.server.settings import ServerSettings
from isthmus.settings.audit import AuditSettings
from isthmus.settings.options import compose
from isthmus.settings.program import TracingSettings


def test_without_a_path_there_is_no_audit() -> None:
    settings = AuditSettings()
    settings.check()
    assert settings.log_path == ""
    assert settings.max_bytes == 100 * 1024 * 1024


@pytest.mark.parametrize("path", ["-", "audit.log", "/var/log/audit.log"])
def test_a_path_is_a_file_or_standard_output(path: str) -> None:
    AuditSettings(log_path=path, log_maxsize=0).check()


@pytest.mark.parametrize("path", ["/var/log/", "a\0b"])
def test_a_path_that_is_no_file_is_refused(path: str) -> None:
    with pytest.raises(ConfigError, match="--audit-log-path must name a file"):
        AuditSettings(log_path=path).check()


@pytest.mark.parametrize("name", ["maxsize", "maxbackup", "maxage"])
def test_numbers_are_not_negative(name: str) -> None:
    settings = AuditSettings(**{f"log_{name}": -1})
    with pytest.raises(ConfigError, match=f"--audit-log-{name} must be"):
        settings.check()


@pytest.mark.parametrize("url", ["", "http://127.0.0.1:4318/v1/traces", "https://[::1]/x"])
def test_an_endpoint_is_a_url(url: str) -> None:
    TracingSettings(endpoint=url).check()


@pytest.mark.parametrize(
    "url", ["127.0.0.1:4318", "grpc://x:1", "http://", "http://[::", "http://a:b"]
)
def test_other_endpoints_are_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="--tracing-endpoint takes a URL such as"):
        TracingSettings(endpoint=url).check()


def test_the_server_checks_them() -> None:
    settings = compose(
        ServerSettings,
        uds_name="/x",
        cluster_cert="c",
        cluster_key="k",
        cluster_ca_cert="a",
        audit_log_maxage=-1,
    )
    with pytest.raises(ConfigError, match="--audit-log-maxage"):
        settings.validate()


def test_records_that_nobody_writes_refuse_nobody() -> None:
    AuditSettings(log_path="-", on_failure="deny").check()
    with pytest.raises(ConfigError, match="--audit-on-failure=deny needs --audit-log-path"):
        AuditSettings(on_failure="deny").check()
