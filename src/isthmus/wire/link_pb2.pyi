from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TrafficClass(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NORMAL: _ClassVar[TrafficClass]
    URGENT: _ClassVar[TrafficClass]
    BULK: _ClassVar[TrafficClass]
NORMAL: TrafficClass
URGENT: TrafficClass
BULK: TrafficClass

class Control(_message.Message):
    __slots__ = ("hello", "welcome", "refusal", "membership", "drain", "load", "ended", "received")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    MEMBERSHIP_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    welcome: Welcome
    refusal: Refusal
    membership: Membership
    drain: Drain
    load: Load
    ended: Ended
    received: Received
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., welcome: _Optional[_Union[Welcome, _Mapping]] = ..., refusal: _Optional[_Union[Refusal, _Mapping]] = ..., membership: _Optional[_Union[Membership, _Mapping]] = ..., drain: _Optional[_Union[Drain, _Mapping]] = ..., load: _Optional[_Union[Load, _Mapping]] = ..., ended: _Optional[_Union[Ended, _Mapping]] = ..., received: _Optional[_Union[Received, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("agent_id", "identifiers", "labels", "network", "version", "token", "features", "relay", "resumes", "instance")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    IDENTIFIERS_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    NETWORK_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    RELAY_FIELD_NUMBER: _ClassVar[int]
    RESUMES_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    agent_id: str
    identifiers: str
    labels: _containers.ScalarMap[str, str]
    network: str
    version: str
    token: str
    features: _containers.RepeatedScalarFieldContainer[str]
    relay: bool
    resumes: bool
    instance: str
    def __init__(self, agent_id: _Optional[str] = ..., identifiers: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ..., network: _Optional[str] = ..., version: _Optional[str] = ..., token: _Optional[str] = ..., features: _Optional[_Iterable[str]] = ..., relay: _Optional[bool] = ..., resumes: _Optional[bool] = ..., instance: _Optional[str] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("server_id", "server_count", "servers", "stream_window", "max_streams", "version", "features", "link", "resume_token", "resume_s")
    SERVER_ID_FIELD_NUMBER: _ClassVar[int]
    SERVER_COUNT_FIELD_NUMBER: _ClassVar[int]
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    STREAM_WINDOW_FIELD_NUMBER: _ClassVar[int]
    MAX_STREAMS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    LINK_FIELD_NUMBER: _ClassVar[int]
    RESUME_TOKEN_FIELD_NUMBER: _ClassVar[int]
    RESUME_S_FIELD_NUMBER: _ClassVar[int]
    server_id: str
    server_count: int
    servers: _containers.RepeatedScalarFieldContainer[str]
    stream_window: int
    max_streams: int
    version: str
    features: _containers.RepeatedScalarFieldContainer[str]
    link: bytes
    resume_token: bytes
    resume_s: int
    def __init__(self, server_id: _Optional[str] = ..., server_count: _Optional[int] = ..., servers: _Optional[_Iterable[str]] = ..., stream_window: _Optional[int] = ..., max_streams: _Optional[int] = ..., version: _Optional[str] = ..., features: _Optional[_Iterable[str]] = ..., link: _Optional[bytes] = ..., resume_token: _Optional[bytes] = ..., resume_s: _Optional[int] = ...) -> None: ...

class Received(_message.Message):
    __slots__ = ("offset",)
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    offset: int
    def __init__(self, offset: _Optional[int] = ...) -> None: ...

class Resume(_message.Message):
    __slots__ = ("link", "token", "epoch", "received", "bearer_token")
    LINK_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    BEARER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    link: bytes
    token: bytes
    epoch: int
    received: int
    bearer_token: str
    def __init__(self, link: _Optional[bytes] = ..., token: _Optional[bytes] = ..., epoch: _Optional[int] = ..., received: _Optional[int] = ..., bearer_token: _Optional[str] = ...) -> None: ...

class Resumed(_message.Message):
    __slots__ = ("received", "next_token", "refusal", "later")
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    NEXT_TOKEN_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    LATER_FIELD_NUMBER: _ClassVar[int]
    received: int
    next_token: bytes
    refusal: str
    later: bool
    def __init__(self, received: _Optional[int] = ..., next_token: _Optional[bytes] = ..., refusal: _Optional[str] = ..., later: _Optional[bool] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class Membership(_message.Message):
    __slots__ = ("server_count", "servers")
    SERVER_COUNT_FIELD_NUMBER: _ClassVar[int]
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    server_count: int
    servers: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, server_count: _Optional[int] = ..., servers: _Optional[_Iterable[str]] = ...) -> None: ...

class Drain(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Load(_message.Message):
    __slots__ = ("open_streams", "agents")
    OPEN_STREAMS_FIELD_NUMBER: _ClassVar[int]
    AGENTS_FIELD_NUMBER: _ClassVar[int]
    open_streams: int
    agents: int
    def __init__(self, open_streams: _Optional[int] = ..., agents: _Optional[int] = ...) -> None: ...

class Ended(_message.Message):
    __slots__ = ("stream", "reason")
    class Reason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNKNOWN: _ClassVar[Ended.Reason]
        RESET: _ClassVar[Ended.Reason]
        LINK_LOST: _ClassVar[Ended.Reason]
        TIMED_OUT: _ClassVar[Ended.Reason]
        STALLED: _ClassVar[Ended.Reason]
        PROTOCOL: _ClassVar[Ended.Reason]
        DRAINED: _ClassVar[Ended.Reason]
        CANCELLED: _ClassVar[Ended.Reason]
        ADMIN: _ClassVar[Ended.Reason]
    UNKNOWN: Ended.Reason
    RESET: Ended.Reason
    LINK_LOST: Ended.Reason
    TIMED_OUT: Ended.Reason
    STALLED: Ended.Reason
    PROTOCOL: Ended.Reason
    DRAINED: Ended.Reason
    CANCELLED: Ended.Reason
    ADMIN: Ended.Reason
    STREAM_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    stream: int
    reason: Ended.Reason
    def __init__(self, stream: _Optional[int] = ..., reason: _Optional[_Union[Ended.Reason, str]] = ...) -> None: ...

class Dial(_message.Message):
    __slots__ = ("network", "host", "port", "dial_id", "timeout_ms", "requester", "requester_groups", "requester_kind", "traceparent", "connection_id", "tracestate", "user", "user_groups", "tenant", "object", "traffic_class", "relayed")
    NETWORK_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    DIAL_ID_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    REQUESTER_FIELD_NUMBER: _ClassVar[int]
    REQUESTER_GROUPS_FIELD_NUMBER: _ClassVar[int]
    REQUESTER_KIND_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    CONNECTION_ID_FIELD_NUMBER: _ClassVar[int]
    TRACESTATE_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    USER_GROUPS_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    OBJECT_FIELD_NUMBER: _ClassVar[int]
    TRAFFIC_CLASS_FIELD_NUMBER: _ClassVar[int]
    RELAYED_FIELD_NUMBER: _ClassVar[int]
    network: str
    host: str
    port: int
    dial_id: int
    timeout_ms: int
    requester: str
    requester_groups: _containers.RepeatedScalarFieldContainer[str]
    requester_kind: str
    traceparent: str
    connection_id: str
    tracestate: str
    user: str
    user_groups: _containers.RepeatedScalarFieldContainer[str]
    tenant: str
    object: str
    traffic_class: TrafficClass
    relayed: bool
    def __init__(self, network: _Optional[str] = ..., host: _Optional[str] = ..., port: _Optional[int] = ..., dial_id: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., requester: _Optional[str] = ..., requester_groups: _Optional[_Iterable[str]] = ..., requester_kind: _Optional[str] = ..., traceparent: _Optional[str] = ..., connection_id: _Optional[str] = ..., tracestate: _Optional[str] = ..., user: _Optional[str] = ..., user_groups: _Optional[_Iterable[str]] = ..., tenant: _Optional[str] = ..., object: _Optional[str] = ..., traffic_class: _Optional[_Union[TrafficClass, str]] = ..., relayed: _Optional[bool] = ...) -> None: ...

class DialResult(_message.Message):
    __slots__ = ("failure", "detail", "address", "traffic_class", "agent_id")
    class Failure(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        NONE: _ClassVar[DialResult.Failure]
        REFUSED: _ClassVar[DialResult.Failure]
        TIMED_OUT: _ClassVar[DialResult.Failure]
        UNREACHABLE: _ClassVar[DialResult.Failure]
        UNRESOLVED: _ClassVar[DialResult.Failure]
        DENIED: _ClassVar[DialResult.Failure]
        NO_AGENT: _ClassVar[DialResult.Failure]
        AGENT_LOST: _ClassVar[DialResult.Failure]
        TOO_MANY: _ClassVar[DialResult.Failure]
        INTERNAL: _ClassVar[DialResult.Failure]
    NONE: DialResult.Failure
    REFUSED: DialResult.Failure
    TIMED_OUT: DialResult.Failure
    UNREACHABLE: DialResult.Failure
    UNRESOLVED: DialResult.Failure
    DENIED: DialResult.Failure
    NO_AGENT: DialResult.Failure
    AGENT_LOST: DialResult.Failure
    TOO_MANY: DialResult.Failure
    INTERNAL: DialResult.Failure
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    TRAFFIC_CLASS_FIELD_NUMBER: _ClassVar[int]
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    failure: DialResult.Failure
    detail: str
    address: str
    traffic_class: TrafficClass
    agent_id: str
    def __init__(self, failure: _Optional[_Union[DialResult.Failure, str]] = ..., detail: _Optional[str] = ..., address: _Optional[str] = ..., traffic_class: _Optional[_Union[TrafficClass, str]] = ..., agent_id: _Optional[str] = ...) -> None: ...
