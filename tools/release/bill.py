"""Bills of materials in CycloneDX's JSON form: of the wheel's environment, and of the image.

cyclonedx-py reads the environment. An image also has Debian's packages, which it does not know:
they come from dpkg's own list, and are written with the same library.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from email.parser import Parser
from importlib.metadata import distributions
from pathlib import Path

from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from packageurl import PackageURL

from release.image import Unpacked

_LIMIT_S = 120.0
_SCHEMA = SchemaVersion.V1_6


def of_environment(python: Path, pyproject: Path, wheel: Path) -> str:
    """List what a Python environment has; the wheel is what it is about."""
    argv = [
        sys.executable, "-m", "cyclonedx_py", "environment", str(python),
        f"--pyproject={pyproject}", "--mc-type=application", "--output-reproducible",
        f"--spec-version={_SCHEMA.to_version()}", "--output-format=JSON",
    ]  # fmt: skip
    done = subprocess.run(argv, capture_output=True, text=True, timeout=_LIMIT_S, check=True)
    document = json.loads(done.stdout)
    document["metadata"]["component"]["hashes"] = [{"alg": "SHA-256", "content": _sha256(wheel)}]
    return json.dumps(document, indent=2) + "\n"


def of_image(image: Unpacked, archive: Path, version: str) -> str:
    """List the packages of Debian and of Python in an image."""
    about = Component(
        type=ComponentType.CONTAINER,
        name="isthmus",
        version=version,
        bom_ref="isthmus-image",
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=_sha256(archive))],
    )
    bom = Bom(components=[*_debian(image.root), *_python(image.root)])
    bom.metadata.component = about
    bom.metadata.timestamp = None  # type: ignore[assignment]  # the same image, the same bill
    for component in bom.components:
        bom.register_dependency(about, [component])
    text = make_outputter(bom, OutputFormat.JSON, _SCHEMA).output_as_string(indent=2)
    document = json.loads(text)
    document.pop("serialNumber", None)
    return json.dumps(document, indent=2) + "\n"


def count(document: str) -> int:
    """How many components a bill lists."""
    return len(json.loads(document)["components"])


def _debian(root: Path) -> Iterator[Component]:
    release = (root / "etc/os-release").read_text("utf-8")
    number = re.findall(r'^VERSION_ID="?([^"\n]+)', release, re.M)
    for paragraph in (root / "var/lib/dpkg/status").read_text("utf-8").strip().split("\n\n"):
        found = Parser().parsestr(paragraph)
        if found["Status"] != "install ok installed":
            continue
        qualifiers = {"arch": found["Architecture"], "distro": f"debian-{number[0]}"}
        purl = PackageURL("deb", "debian", found["Package"], found["Version"], qualifiers)
        yield _component(purl)


def _python(root: Path) -> Iterator[Component]:
    places = {str(each.parent) for each in root.glob("opt/**/*.dist-info")}
    for found in distributions(path=sorted(places)):
        name = re.sub(r"[-_.]+", "-", found.metadata["Name"]).lower()  # as PEP 503 has it
        yield _component(PackageURL("pypi", None, name, found.version))


def _component(purl: PackageURL) -> Component:
    return Component(
        type=ComponentType.LIBRARY, name=purl.name, version=purl.version, purl=purl,
        bom_ref=purl.to_string(),
    )  # fmt: skip


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
