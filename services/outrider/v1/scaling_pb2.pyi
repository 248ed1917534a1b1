from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ScaleRequest(_message.Message):
    __slots__ = ("num_verifiers", "num_drafters")
    NUM_VERIFIERS_FIELD_NUMBER: _ClassVar[int]
    NUM_DRAFTERS_FIELD_NUMBER: _ClassVar[int]
    num_verifiers: int
    num_drafters: int
    def __init__(self, num_verifiers: _Optional[int] = ..., num_drafters: _Optional[int] = ...) -> None: ...

class ScaleResponse(_message.Message):
    __slots__ = ("replicas",)
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    replicas: _containers.RepeatedCompositeFieldContainer[ScaledReplica]
    def __init__(self, replicas: _Optional[_Iterable[_Union[ScaledReplica, _Mapping]]] = ...) -> None: ...

class ScaledReplica(_message.Message):
    __slots__ = ("replica_id", "address")
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    replica_id: str
    address: str
    def __init__(self, replica_id: _Optional[str] = ..., address: _Optional[str] = ...) -> None: ...
