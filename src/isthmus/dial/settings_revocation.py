"""The settings of certificates and tokens that were taken back.

What a list of revoked certificates is, and how it is read, is net/revocation.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from isthmus.errors import ConfigError
from isthmus.settings.options import OURS, SettingsBlock, option

#: What becomes of the link of an agent whose token has expired.
KEEP, CUT = "keep", "cut"
_GROUP = "Revocation"


@dataclass(frozen=True, slots=True, kw_only=True)
class RevocationSettings(SettingsBlock):
    """Whom a server cuts off though their certificates or tokens are not over yet."""

    GO: ClassVar = OURS

    cluster_crl_file: str = option(
        "",
        once=True,
        help="Refuse agents, and other servers, whose certificate is in a list of this file, and "
        "cut those that are linked; it is read again when it changes",
        group=_GROUP,
        metavar="FILE",
        filled=True,
    )
    server_crl_file: str = option(
        "",
        once=True,
        help="Refuse clients whose certificate is in a list of this file, and cut those that are "
        "connected",
        group=_GROUP,
        metavar="FILE",
        filled=True,
    )
    agent_token_review_interval_s: float = option(
        300.0,
        help="Ask the Kubernetes API again about the token of each linked agent this often, and "
        "cut those that it does not accept any more; 0 asks once",
        unit="seconds",
        group=_GROUP,
    )
    agent_token_expiry: str = option(
        KEEP,
        help="Keep or cut the link of an agent when the token that it came with expires",
        choices=(KEEP, CUT),
        metavar=f"{KEEP}|{CUT}",
        group=_GROUP,
    )

    def check(self, *, cluster_ca: str, server_ca: str) -> None:
        """Check that each file of revoked certificates has its authorities.

        Raises:
            ConfigError: one sentence that names the flag that is missing.
        """
        for flag, crl, ca in (
            ("cluster", self.cluster_crl_file, cluster_ca),
            ("server", self.server_crl_file, server_ca),
        ):
            if crl and not ca:
                raise ConfigError(
                    f"--{flag}-ca-cert is missing: a list in --{flag}-crl-file is signed by an"
                    " authority that is in it"
                )
