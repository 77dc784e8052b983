from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class ConnectOptions(_message.Message):
    __slots__ = ("remote_addr",)
    REMOTE_ADDR_FIELD_NUMBER: _ClassVar[int]
    remote_addr: str
    def __init__(self, remote_addr: _Optional[str] = ...) -> None: ...

class Payload(_message.Message):
    __slots__ = ("data", "isthmus_end_of_data")
    DATA_FIELD_NUMBER: _ClassVar[int]
    ISTHMUS_END_OF_DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    isthmus_end_of_data: bool
    def __init__(self, data: _Optional[bytes] = ..., isthmus_end_of_data: _Optional[bool] = ...) -> None: ...
