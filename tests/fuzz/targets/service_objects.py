"""Services, EndpointSlices, Nodes and ServiceCIDRs as the API or a file gives them.

What cannot be read is left out with a note; nothing is raised, and what is read makes rules.
"""

import msgspec

from isthmus.programs.node_proxy.rules.model import ServiceObject
from isthmus.programs.node_proxy.rules.reading import (
    read_node,
    read_service,
    read_service_cidrs,
    read_slice,
    service_key,
    slice_key,
)


def check(data: bytes) -> None:
    """Read JSON as each kind of object."""
    from_file, raw = bool(data[:1] and data[0] & 1), data[1:]
    try:
        msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return  # the API's client says so
    given, notes = msgspec.Raw(raw), list[str]()
    service = read_service(given, notes, from_file=from_file)
    assert service is None or isinstance(service, ServiceObject)
    read_slice(given, notes, from_file=from_file)
    read_node(given, notes)
    read_service_cidrs(given, notes)
    service_key(given)
    slice_key(given)
    assert all(note.isprintable() and len(note) < 600 for note in notes), notes
