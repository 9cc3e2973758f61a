from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DescribeEvaluationRequest(_message.Message):
    __slots__ = ("data_set", "epoch", "manifest_sha256", "loss_name", "label")
    DATA_SET_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_SHA256_FIELD_NUMBER: _ClassVar[int]
    LOSS_NAME_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    data_set: str
    epoch: str
    manifest_sha256: bytes
    loss_name: str
    label: str
    def __init__(self, data_set: _Optional[str] = ..., epoch: _Optional[str] = ..., manifest_sha256: _Optional[bytes] = ..., loss_name: _Optional[str] = ..., label: _Optional[str] = ...) -> None: ...

class DescribeEvaluationResponse(_message.Message):
    __slots__ = ("epsilon", "answers", "answers_left", "largest_loss", "tolerance")
    EPSILON_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_LEFT_FIELD_NUMBER: _ClassVar[int]
    LARGEST_LOSS_FIELD_NUMBER: _ClassVar[int]
    TOLERANCE_FIELD_NUMBER: _ClassVar[int]
    epsilon: str
    answers: int
    answers_left: int
    largest_loss: float
    tolerance: float
    def __init__(self, epsilon: _Optional[str] = ..., answers: _Optional[int] = ..., answers_left: _Optional[int] = ..., largest_loss: _Optional[float] = ..., tolerance: _Optional[float] = ...) -> None: ...

class EvaluatePredictionsRequest(_message.Message):
    __slots__ = ("header", "predictions")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    PREDICTIONS_FIELD_NUMBER: _ClassVar[int]
    header: EvaluationHeader
    predictions: bytes
    def __init__(self, header: _Optional[_Union[EvaluationHeader, _Mapping]] = ..., predictions: _Optional[bytes] = ...) -> None: ...

class EvaluationHeader(_message.Message):
    __slots__ = ("data_set", "epoch", "manifest_sha256", "loss_name", "label")
    DATA_SET_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_SHA256_FIELD_NUMBER: _ClassVar[int]
    LOSS_NAME_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    data_set: str
    epoch: str
    manifest_sha256: bytes
    loss_name: str
    label: str
    def __init__(self, data_set: _Optional[str] = ..., epoch: _Optional[str] = ..., manifest_sha256: _Optional[bytes] = ..., loss_name: _Optional[str] = ..., label: _Optional[str] = ...) -> None: ...

class EvaluatePredictionsResponse(_message.Message):
    __slots__ = ("loss", "answers_left", "largest_loss", "noise_scale")
    LOSS_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_LEFT_FIELD_NUMBER: _ClassVar[int]
    LARGEST_LOSS_FIELD_NUMBER: _ClassVar[int]
    NOISE_SCALE_FIELD_NUMBER: _ClassVar[int]
    loss: float
    answers_left: int
    largest_loss: float
    noise_scale: float
    def __init__(self, loss: _Optional[float] = ..., answers_left: _Optional[int] = ..., largest_loss: _Optional[float] = ..., noise_scale: _Optional[float] = ...) -> None: ...
