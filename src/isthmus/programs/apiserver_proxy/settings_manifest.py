"""The settings of ``isthmus manifest apiserver-proxy``: the form, and names of objects."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar

from isthmus.errors import ConfigError
from isthmus.manifests.settings import (
    EXECUTABLE,
    FORM,
    IMAGE,
    NAMESPACE,
    RUN_AS,
    STATIC_POD,
    SYSTEMD,
    UNIT_GROUP,
    check_executable,
    check_group,
    check_image,
    check_name,
    check_namespace,
    check_user,
)
from isthmus.settings.options import OURS, option
from isthmus.settings.parsing import check_values

IGNITION = "ignition"
FORMS = (STATIC_POD, SYSTEMD, IGNITION)
_GROUP = "Manifest"
_POD = ("image", "namespace", "run_as")
_UNIT = ("executable", "unit_group")
_IGNITION = ("ignition_with", "file")


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiserverProxyManifestSettings:
    """How to run the proxy of a node; ``validate()`` checks the settings."""

    GO: ClassVar = OURS

    form: str = FORM(choices=("", *FORMS), metavar="|".join(FORMS), group=_GROUP)
    ignition_with: str = option(
        SYSTEMD,
        help="Form that Ignition writes",
        choices=(SYSTEMD, STATIC_POD),
        metavar=f"{SYSTEMD}|{STATIC_POD}",
        group=_GROUP,
    )
    file: str = option(
        "",
        help="Local file, and the path of the node that Ignition writes it to, such as the "
        "cluster's CAs",
        repeat=True,
        metavar="PATH=FILE",
        group=_GROUP,
    )
    name: str = option(
        "kube-apiserver-proxy", help="Name of the objects", metavar="NAME", group=_GROUP
    )
    namespace: str = NAMESPACE(help="Namespace of a pod", group=_GROUP)
    image: str = IMAGE(help="Image to run, which has isthmus in its PATH, and nft", group=_GROUP)
    run_as: int = RUN_AS(help="User and group of a pod that needs no capability", group=_GROUP)
    executable: str = EXECUTABLE(group=_GROUP)
    unit_group: str = UNIT_GROUP(group=_GROUP)

    @property
    def runs_as(self) -> str:
        """What runs on the node: a static pod or a unit."""
        return self.ignition_with if self.form == IGNITION else self.form

    def validate(self) -> None:
        """Check each setting.

        Raises:
            ConfigError: names the flag and says what to do.
        """
        if not self.form:
            raise ConfigError(f"--as is missing: say {', '.join(FORMS[:-1])} or {FORMS[-1]}")
        check_values(self)
        check_name("name", self.name)
        check_namespace(self.namespace)
        check_image(self.image)
        check_executable(self.executable)
        check_group(self.unit_group)
        check_user(self.run_as)

    def warnings(self, given: Collection[str]) -> list[str]:
        """Flags that were given and have no effect in this form, one text each."""
        vain = [*(_UNIT if self.runs_as == STATIC_POD else _POD)]
        vain += [] if self.form == IGNITION else _IGNITION
        return [
            f"--{attribute.replace('_', '-')} has no effect with --as={self.form}"
            for attribute in vain
            if attribute in given
        ]
