from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CarryRequest(_message.Message):
    __slots__ = ("events",)
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[CallerEvent]
    def __init__(self, events: _Optional[_Iterable[_Union[CallerEvent, _Mapping]]] = ...) -> None: ...

class CallerEvent(_message.Message):
    __slots__ = ("call", "begin", "message", "num_read", "cancelled")
    CALL_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    NUM_READ_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    call: int
    begin: CallBegin
    message: bytes
    num_read: int
    cancelled: CallCancelled
    def __init__(self, call: _Optional[int] = ..., begin: _Optional[_Union[CallBegin, _Mapping]] = ..., message: _Optional[bytes] = ..., num_read: _Optional[int] = ..., cancelled: _Optional[_Union[CallCancelled, _Mapping]] = ...) -> None: ...

class CallBegin(_message.Message):
    __slots__ = ("method", "timeout_us", "metadata")
    METHOD_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_US_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    method: str
    timeout_us: int
    metadata: _containers.RepeatedCompositeFieldContainer[CallMetadata]
    def __init__(self, method: _Optional[str] = ..., timeout_us: _Optional[int] = ..., metadata: _Optional[_Iterable[_Union[CallMetadata, _Mapping]]] = ...) -> None: ...

class CallMetadata(_message.Message):
    __slots__ = ("key", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: str
    def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class CallCancelled(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CarryResponse(_message.Message):
    __slots__ = ("events",)
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[HandlerEvent]
    def __init__(self, events: _Optional[_Iterable[_Union[HandlerEvent, _Mapping]]] = ...) -> None: ...

class HandlerEvent(_message.Message):
    __slots__ = ("call", "message", "status")
    CALL_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    call: int
    message: bytes
    status: CallStatus
    def __init__(self, call: _Optional[int] = ..., message: _Optional[bytes] = ..., status: _Optional[_Union[CallStatus, _Mapping]] = ...) -> None: ...

class CallStatus(_message.Message):
    __slots__ = ("code", "details", "trailing_metadata")
    CODE_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    TRAILING_METADATA_FIELD_NUMBER: _ClassVar[int]
    code: int
    details: str
    trailing_metadata: _containers.RepeatedCompositeFieldContainer[CallMetadata]
    def __init__(self, code: _Optional[int] = ..., details: _Optional[str] = ..., trailing_metadata: _Optional[_Iterable[_Union[CallMetadata, _Mapping]]] = ...) -> None: ...
