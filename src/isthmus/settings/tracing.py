"""The setting of tracing, for every program; everything else is OpenTelemetry's environment."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from isthmus.errors import ConfigError
from isthmus.settings.memory import MemorySettings
from isthmus.settings.options import OURS, option


@dataclass(frozen=True, slots=True, kw_only=True)
class TracingSettings(MemorySettings):
    """Where spans go; ``check_tracing()`` says whether that makes sense."""

    tracing_endpoint: str = option(
        "",
        help="Send a span of each dial to this address by OTLP over HTTP; without it the OTEL_ "
        "variables of the environment decide",
        group="Tracing",
        metavar="URL",
        go=OURS,
    )

    def check_tracing(self) -> None:
        """Look at the address.

        Raises:
            ConfigError: it is no URL.
        """
        if not self.tracing_endpoint:
            return
        try:
            url = urlsplit(self.tracing_endpoint)
            _ = url.port  # raises if it is none
        except ValueError:
            url = urlsplit("")
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ConfigError(
                "--tracing-endpoint takes a URL such as http://127.0.0.1:4318/v1/traces, not"
                f" {self.tracing_endpoint!r}"
            )
