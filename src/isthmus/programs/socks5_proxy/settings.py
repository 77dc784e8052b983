"""The settings of ``isthmus socks5-proxy``: those of every sidecar (programs/sidecar)."""

from __future__ import annotations

from dataclasses import dataclass

from isthmus.programs.sidecar.settings import SidecarSettings
from isthmus.programs.sidecar.settings_presets import SOCKS5
from isthmus.programs.socks5_proxy import PROGRAM
from isthmus.settings.admin import AdminSettings
from isthmus.settings.options import OURS, block


@dataclass(frozen=True, slots=True, kw_only=True)
class Socks5ProxySettings(SidecarSettings):
    """All settings of the SOCKS5 sidecar; ``validate()`` checks them."""

    KIND = SOCKS5
    admin: AdminSettings = block(AdminSettings(health_port=8098, port=PROGRAM.admin_port), go=OURS)

    def validate(self) -> None:
        """Check the settings against each other.

        Raises:
            ConfigError: names the flag and says what to do.
        """
        self.check_sidecar()
