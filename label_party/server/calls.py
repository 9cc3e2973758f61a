"""Calls, from their headers to their end.

gRPC hands a call over when its headers have arrived. Who calls is asked then, before anything is
read: a client that nobody knows, or that has too many calls open already, is refused with its
request still on its way. Who may go on has some seconds to complete it, as a coroutine that costs
no thread. Only what an authorized client has completely asked for is worked on, by one of a
bounded number of threads, because disks and SQLite would hold up the event loop.

Reads and writes that gRPC has begun are never cancelled here, but left behind: it writes their
outcome into memory that a cancelled one would have given back. They end with their call.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from concurrent.futures import Executor
from functools import partial
from typing import Any, TypeVar
from urllib.parse import unquote

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from grpc import aio

from labelveil.label_party.monitoring.calls import Call, Telemetry
from labelveil.label_party.server.access import AccessPolicy, certificate_of, holder_of
from labelveil.label_party.server.limits import Places, RateLimits
from labelveil.label_party.server.refusal import (
    Refusal,
    incomplete,
    internal_error,
    invalid,
    no_such_method,
    stalled,
    too_many_calls,
    too_many_requests,
    unknown_client,
)

T = TypeVar("T")

REQUEST_SECONDS = 10.0
"""How long a call's request, and a reflection stream's next one, may take to arrive."""

_NO_METHOD = "unknown"
"""What logs and metrics call a method that there is not; its name is the client's."""

_METHOD = re.compile(r"/[\w.]{1,100}/\w{1,100}", re.ASCII)

_UNKNOWN_CALLS = 256
"""Health checks that may be open, whoever asks, together."""

_UNKNOWN_EACH = 16
"""Health checks that may be open with one certificate."""


class Rpc:
    """One authorized call, and its record for logs, metrics and traces.

    ``client`` is the configured name that was proved; empty for others, who may ask for health
    alone.
    """

    def __init__(
        self,
        context: Any,  # aio's servicer context; its stubs leave out that bytes may be read
        request: type[Message],
        client: str,
        record: Call,
        work: ActiveCalls,
    ) -> None:
        self.client, self.record = client, record
        self._context, self._work = context, work
        self.run = work.run
        self._type = request

    async def request(self) -> Any:
        """Read the request, or a stream's first message: a message of the method's own type."""
        message = await self.read(REQUEST_SECONDS, incomplete)
        if message is None:
            raise invalid("the call has no request")
        self._work.begin(self)
        return message

    async def messages(self, seconds: float) -> AsyncIterator[Any]:
        """Read the other messages of a stream, each of which has ``seconds`` to arrive."""
        while (message := await self.read(seconds, stalled)) is not None:
            yield message

    async def read(self, seconds: float, late: Callable[[], Refusal]) -> Any:
        """Read one message, or refuse if it is late; None if no other comes."""
        data = await _before(seconds, late, self._context.read())
        if data is aio.EOF:
            return None
        try:
            return self._type.FromString(data)
        except DecodeError:
            raise invalid("the request cannot be read as a message of this call") from None

    async def write(self, message: Message | bytes, seconds: float = REQUEST_SECONDS) -> None:
        """Send a message, perhaps serialized already; done when the transport has taken it."""
        data = message if isinstance(message, bytes) else message.SerializeToString()
        await _before(seconds, stalled, self._context.write(data))


Method = Callable[[Rpc], Awaitable[None]]


def _handler(answer: Callable[..., Awaitable[None]]) -> Any:
    """What gRPC calls; a unary call, too, is a stream of one message, read when its client is
    known."""
    return grpc.stream_stream_rpc_method_handler(answer)


async def _no_such_method(method: str, rpc: Rpc) -> None:
    """Refuse a method that nobody serves, perhaps of another version."""
    rpc.record.facts["asked"] = method if _METHOD.fullmatch(method) else ""
    raise no_such_method()


async def _before(
    seconds: float, late: Callable[[], Refusal], operation: Coroutine[Any, Any, T]
) -> T:
    """Await what gRPC does, for so long; why it is left behind afterwards is said above."""
    task = asyncio.ensure_future(operation)
    task.add_done_callback(_look_at)
    done, _ = await asyncio.wait([task], timeout=seconds)
    if not done:
        raise late()
    try:
        return task.result()
    except aio.BaseError as error:  # the connection is gone
        raise asyncio.CancelledError from error


def _look_at(operation: asyncio.Future[Any]) -> None:
    """Take note of how something ended that nobody awaits any more, or asyncio complains."""
    if not operation.cancelled():
        operation.exception()


class ActiveCalls:
    """What is being worked on by threads, so that a stop waits for it and for nothing else."""

    def __init__(self, threads: Executor) -> None:
        self._threads = threads
        self._rpcs: set[Rpc] = set()
        self._none = asyncio.Event()
        self._none.set()

    def begin(self, rpc: Rpc) -> None:
        """Note that a request is complete. Who watches a health state is not waited for."""
        if rpc.client:
            self._rpcs.add(rpc)
            self._none.clear()

    def end(self, rpc: Rpc) -> None:
        """Note that nothing more is done for a call."""
        self._rpcs.discard(rpc)
        if not self._rpcs:
            self._none.set()

    async def ended(self) -> None:
        """Wait until nothing is being worked on."""
        await self._none.wait()

    async def run(self, function: Callable[..., T], *arguments: Any) -> T:
        """Work on a thread, and wait for it: even if the client leaves meanwhile, so that nothing
        is taken away under it."""
        loop = asyncio.get_running_loop()
        done = loop.run_in_executor(self._threads, partial(function, *arguments))
        try:
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            done.add_done_callback(_look_at)
            await asyncio.wait([done])
            raise


class Calls(grpc.GenericRpcHandler):
    """Hands calls to services; of one client, at most ``each`` may be open."""

    def __init__(
        self,
        policy: AccessPolicy,
        rate: RateLimits,
        each: int,
        telemetry: Telemetry,
        work: ActiveCalls,
    ) -> None:
        self._policy, self._rate, self._telemetry, self._work = policy, rate, telemetry, work
        self._known = Places(each * policy.clients, each, too_many_calls)
        self._unknown = Places(_UNKNOWN_CALLS, _UNKNOWN_EACH, too_many_calls)
        self._handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}

    def add(self, service: ServiceDescriptor, servicer: object, *, public: bool = False) -> None:
        """Serve a service with an object's methods; a public one to any client, unrecorded."""
        for method in service.methods:
            implementation = getattr(servicer, method.name, None)
            if implementation is None:  # as health's List, which not every version has
                continue
            request = GetMessageClass(method.input_type)
            answer = partial(self._answer, method.name, request, implementation, public)
            self._handlers[f"/{service.full_name}/{method.name}"] = _handler(answer)

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any]:
        """Return what answers a call: of a method that there is not, too, so that it is seen."""
        method = handler_call_details.method
        refuse = partial(_no_such_method, method)
        return self._handlers.get(method) or _handler(
            partial(self._answer, _NO_METHOD, Empty, refuse, False)
        )

    async def _answer(
        self,
        name: str,
        request: type[Message],
        method: Method,
        public: bool,
        messages: object,
        context: Any,
    ) -> None:
        # a place is held until the call's end is written, which a client may put off for ever
        with contextlib.ExitStack() as held:
            record = Call(self._telemetry, name, unquote(context.peer()))
            if not public:
                held.enter_context(self._telemetry.recorded(record))
            rpc = None
            try:
                client = self._admit(context, public, record, held)
                rpc = Rpc(context, request, client, record, self._work)
                await method(rpc)
                return
            except Refusal as refusal:
                failure = refusal.with_traceback(None)  # which holds the context, and so the call
            except Exception:
                # gRPC would send the exception's text to the client
                self._telemetry.failed(name)
                failure = internal_error()
            finally:
                if rpc is not None:
                    self._work.end(rpc)
            record.refuse(failure.code.name, failure.reason, str(failure.__cause__ or ""))
            await context.abort(failure.code, failure.text, failure.trailers())

    def _admit(self, context: Any, public: bool, record: Call, held: contextlib.ExitStack) -> str:
        """Return the name of a client that may go on."""
        certificate = certificate_of(context.auth_context())
        holder = holder_of(certificate)
        record.facts |= {"serial": holder.serial, "subject": holder.subject}
        if public:
            held.enter_context(self._unknown.hold(hashlib.sha256(certificate).hexdigest()))
            return ""
        client = self._policy.identify(certificate)
        if client is None:
            raise unknown_client()
        record.facts["client"] = client
        self._telemetry.seen(client, holder.ends)
        held.enter_context(self._known.hold(client))
        if wait := self._rate.wait(client):
            raise too_many_requests(wait)
        return client
