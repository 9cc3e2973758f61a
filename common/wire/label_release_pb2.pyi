from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PopulationStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    POPULATION_STATUS_UNSPECIFIED: _ClassVar[PopulationStatus]
    POPULATION_STATUS_STORED: _ClassVar[PopulationStatus]
    POPULATION_STATUS_ALREADY_STORED: _ClassVar[PopulationStatus]
    POPULATION_STATUS_FROZEN: _ClassVar[PopulationStatus]
POPULATION_STATUS_UNSPECIFIED: PopulationStatus
POPULATION_STATUS_STORED: PopulationStatus
POPULATION_STATUS_ALREADY_STORED: PopulationStatus
POPULATION_STATUS_FROZEN: PopulationStatus

class DescribeReleaseRequest(_message.Message):
    __slots__ = ("data_set", "epoch", "client")
    DATA_SET_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    data_set: str
    epoch: str
    client: Software
    def __init__(self, data_set: _Optional[str] = ..., epoch: _Optional[str] = ..., client: _Optional[_Union[Software, _Mapping]] = ...) -> None: ...

class DescribeReleaseResponse(_message.Message):
    __slots__ = ("manifest", "manifest_sha256", "signature", "server")
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_SHA256_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    SERVER_FIELD_NUMBER: _ClassVar[int]
    manifest: bytes
    manifest_sha256: bytes
    signature: bytes
    server: Software
    def __init__(self, manifest: _Optional[bytes] = ..., manifest_sha256: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., server: _Optional[_Union[Software, _Mapping]] = ...) -> None: ...

class Software(_message.Message):
    __slots__ = ("version", "formats")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FORMATS_FIELD_NUMBER: _ClassVar[int]
    version: str
    formats: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, version: _Optional[str] = ..., formats: _Optional[_Iterable[str]] = ...) -> None: ...

class FetchReleaseRequest(_message.Message):
    __slots__ = ("data_set", "epoch", "manifest_sha256", "start_row", "max_chunk_bytes")
    DATA_SET_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_SHA256_FIELD_NUMBER: _ClassVar[int]
    START_ROW_FIELD_NUMBER: _ClassVar[int]
    MAX_CHUNK_BYTES_FIELD_NUMBER: _ClassVar[int]
    data_set: str
    epoch: str
    manifest_sha256: bytes
    start_row: int
    max_chunk_bytes: int
    def __init__(self, data_set: _Optional[str] = ..., epoch: _Optional[str] = ..., manifest_sha256: _Optional[bytes] = ..., start_row: _Optional[int] = ..., max_chunk_bytes: _Optional[int] = ...) -> None: ...

class FetchReleaseResponse(_message.Message):
    __slots__ = ("start_row", "keys", "codes")
    START_ROW_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    CODES_FIELD_NUMBER: _ClassVar[int]
    start_row: int
    keys: bytes
    codes: bytes
    def __init__(self, start_row: _Optional[int] = ..., keys: _Optional[bytes] = ..., codes: _Optional[bytes] = ...) -> None: ...

class SubmitPopulationRequest(_message.Message):
    __slots__ = ("header", "keys", "question")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    header: PopulationHeader
    keys: bytes
    question: bytes
    def __init__(self, header: _Optional[_Union[PopulationHeader, _Mapping]] = ..., keys: _Optional[bytes] = ..., question: _Optional[bytes] = ...) -> None: ...

class PopulationHeader(_message.Message):
    __slots__ = ("data_set", "epoch", "rows", "population_sha256", "secret_check", "question_sha256", "client")
    DATA_SET_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    POPULATION_SHA256_FIELD_NUMBER: _ClassVar[int]
    SECRET_CHECK_FIELD_NUMBER: _ClassVar[int]
    QUESTION_SHA256_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    data_set: str
    epoch: str
    rows: int
    population_sha256: bytes
    secret_check: bytes
    question_sha256: bytes
    client: Software
    def __init__(self, data_set: _Optional[str] = ..., epoch: _Optional[str] = ..., rows: _Optional[int] = ..., population_sha256: _Optional[bytes] = ..., secret_check: _Optional[bytes] = ..., question_sha256: _Optional[bytes] = ..., client: _Optional[_Union[Software, _Mapping]] = ...) -> None: ...

class SubmitPopulationResponse(_message.Message):
    __slots__ = ("rows", "population_sha256", "status")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    POPULATION_SHA256_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    rows: int
    population_sha256: bytes
    status: PopulationStatus
    def __init__(self, rows: _Optional[int] = ..., population_sha256: _Optional[bytes] = ..., status: _Optional[_Union[PopulationStatus, str]] = ...) -> None: ...
