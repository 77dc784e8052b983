"""Link messages: any split reads alike, round trips are exact, garbage raises one kind of error."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from isthmus.errors import ProtocolError
from isthmus.wire.link import take_message, to_bytes
from isthmus.wire.link_pb2 import Control, Dial, DialResult, Hello, Resume, Resumed

text = st.text(max_size=30)
dials = st.builds(
    Dial,
    host=text,
    port=st.integers(0, 65535),
    dial_id=st.integers(0, 2**63 - 1),
    timeout_ms=st.integers(0, 2**31 - 1),
    requester=text,
    requester_groups=st.lists(text, max_size=3),
)
hellos = st.builds(
    lambda **fields: Control(hello=Hello(**fields)),
    agent_id=text,
    identifiers=text,
    labels=st.dictionaries(text, text, max_size=3),
    token=text,
    version=text,
)


@given(st.lists(dials, max_size=5), st.lists(st.integers(1, 40), min_size=1), st.binary())
def test_any_split_gives_the_same_messages(
    messages: list[Dial], sizes: list[int], rest: bytes
) -> None:
    # What follows may look like the beginning of a message, never like a whole one.
    rest = b"\0\0\x10\0" + rest
    data = b"".join(map(to_bytes, messages)) + rest
    buffer, turn = bytearray(), 0
    got: list[Dial] = []
    while data:
        size = sizes[turn % len(sizes)]
        buffer += data[:size]
        data = data[size:]
        turn += 1
        while len(got) < len(messages) and (one := take_message(buffer, Dial)) is not None:
            got.append(one)
    assert got == messages
    assert bytes(buffer) == rest


@given(hellos)
def test_what_is_written_reads_back(message: Control) -> None:
    buffer = bytearray(to_bytes(message))
    assert take_message(buffer, Control) == message
    assert not buffer


@given(st.binary(max_size=300), st.sampled_from([Control, Dial, DialResult, Resume, Resumed]))
def test_garbage_is_a_message_or_too_short_or_a_protocol_error(
    data: bytes, kind: type[Control | Dial | DialResult | Resume | Resumed]
) -> None:
    for given_ in (data, len(data).to_bytes(4, "big") + data):
        buffer = bytearray(given_)
        try:
            message = take_message(buffer, kind)
        except ProtocolError:
            continue
        if message is None:
            assert bytes(buffer) == given_
        else:
            assert len(buffer) < len(given_)
