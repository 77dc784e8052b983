"""An nsswitch.conf: a bounded list of sources, each with a name."""

from isthmus.net.rules_names import parse_nsswitch


def check(data: bytes) -> None:
    """Read any file."""
    sources = parse_nsswitch(data.decode("utf-8", "replace"))
    assert len(sources) <= 16 and all(source.name for source in sources)
