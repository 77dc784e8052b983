"""A HostedCluster: a document or one ConfigError that names the place, read and converted."""

from texts import NAME, read

from isthmus.hosting import document
from isthmus.hosting.convert import convert
from isthmus.hosting.models import MODELS


def check(data: bytes) -> None:
    """Read any text; what is read goes to the other version as a whole, or is refused."""
    found = read(data, lambda text: document.read(text, NAME))
    for model in MODELS.values() if found else ():
        converted = read(data, lambda text, to=model: convert(text, NAME, to))
        assert not converted or bool(converted.text) is not bool(converted.refused)
