"""Calls between nodes by gRPC, on this machine only; a tunnel brings them to other hosts.

A call has a deadline, and its messages a maximum size; an unauthenticated peer, without the
program's key, is refused before its message is decoded. See `distrl.runtime.messages`.
"""

import concurrent.futures
import hmac
import os
import traceback
from collections.abc import Callable
from typing import Any

# Nodes are forked before they use it. What a node forks itself, a pool's workers, does not call.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

import grpc

from distrl.errors import Stopped
from distrl.runtime.durations import longest_wait
from distrl.runtime.messages import MessageError, decode, encode

MAX_BYTES = 1 << 30  # maximum size of a message
_KEY = "distrl-key"
_PREFIX = "/distrl/"
_THREADS = 64  # threads at most that serve a node's calls; started as they are needed
_TEXT_LIMIT = 10_000  # characters of an error
_SIZES = [
    ("grpc.max_receive_message_length", MAX_BYTES),
    ("grpc.max_send_message_length", MAX_BYTES),
]
# A server that is started again is reached soon, at the same address.
_CLIENT_OPTIONS = [
    *_SIZES,
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.use_local_subchannel_pool", 1),
]


class CallError(Exception):
    """A call failed: the other node raised an exception, or could not be reached in time.

    Attributes:
      code: gRPC's status, such as `grpc.StatusCode.DEADLINE_EXCEEDED`; None: the node raised.
    """

    def __init__(self, text: str, code: "grpc.StatusCode | None" = None) -> None:
        super().__init__(text)
        self.code = code


class RpcServer:
    """Serves the public methods of an object, from now on.

    Args:
      instance: the object.
      address: "unix:/path", of a folder that only this user can enter; or "127.0.0.1:port".
      key: what callers must know.
      max_bytes: maximum size of a message.

    Raises:
      RuntimeError: the address cannot be taken.
    """

    def __init__(
        self, instance: object, address: str, key: str, max_bytes: int = MAX_BYTES
    ) -> None:
        self._pool = concurrent.futures.ThreadPoolExecutor(_THREADS, "calls")
        options = [(name, max_bytes) for name, _ in _SIZES]
        self._server = grpc.server(
            self._pool,
            handlers=[_Methods(instance, key)],
            options=[*options, ("grpc.so_reuseport", 0)],
        )
        self._server.add_insecure_port(address)
        self._server.start()

    def stop(self, grace: float = 0.0) -> None:
        """Takes no more calls, and ends those in progress after `grace` seconds at most."""
        self._server.stop(grace).wait(grace + 5.0)
        self._pool.shutdown(wait=False, cancel_futures=True)


class _Methods(grpc.GenericRpcHandler):
    """The public methods of an object, for those who know the key."""

    def __init__(self, instance: object, key: str) -> None:
        self._key = key.encode()
        self._methods = {
            name: grpc.unary_unary_rpc_method_handler(_serving(getattr(instance, name)))
            for name in dir(instance)
            if not name.startswith("_") and name != "run" and callable(getattr(instance, name))
        }

    def service(self, call: Any) -> Any:
        given = dict(call.invocation_metadata or ()).get(_KEY, b"")
        given = given.encode(errors="replace") if isinstance(given, str) else given
        if not hmac.compare_digest(given, self._key):
            return _REFUSED
        return self._methods.get(call.method.removeprefix(_PREFIX))  # None: UNIMPLEMENTED


def _refuse(request: bytes, context: Any) -> None:
    del request
    context.abort(grpc.StatusCode.UNAUTHENTICATED, "the caller does not belong to this program")


_REFUSED = grpc.unary_unary_rpc_method_handler(_refuse)


def _serving(method: Callable[..., Any]) -> Callable[[bytes, Any], bytes]:
    """Returns a method as gRPC calls it: its answer is (True, result) or (False, error)."""

    def serve(request: bytes, context: Any) -> bytes:
        try:
            args, kwargs = decode(request)
            known = type(args) is tuple and type(kwargs) is dict
        except (MessageError, TypeError, ValueError):
            known = False
        if not known:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the request is not a call")
        try:
            return encode((True, method(*args, **kwargs)))
        except Stopped as stopped:
            return encode((False, f"{type(stopped).__name__}: {stopped}"[:_TEXT_LIMIT]))
        except Exception as error:
            trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
            return encode((False, f"{type(error).__name__}: {error}\n{trace}"[:_TEXT_LIMIT]))

    return serve


class RpcClient:
    """Calls the methods of another node's object, as if they were its own.

    A call waits for a node that is not there yet, or not there again, within its deadline. If the
    node ends during a call, the call fails; the next one reaches the node's next life.

    Args:
      address: the node's address, see `RpcServer`.
      key: see `RpcServer`.
      timeout: deadline of each call in seconds; None: none.

    Attributes:
      futures: has the same methods, which return a `concurrent.futures.Future` immediately.
    """

    def __init__(self, address: str, key: str, timeout: float | None = None) -> None:
        self._channel = grpc.insecure_channel(address, _CLIENT_OPTIONS)
        self._metadata = ((_KEY, key),)
        self._timeout = None if timeout is None else longest_wait(timeout)
        self.futures = _Futures(self)

    def __getattr__(self, method: str) -> Callable[..., Any]:
        if method.startswith("_"):
            raise AttributeError(method)
        remote = self._remote(method)

        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return _result(remote(encode((args, kwargs)), **self._options))
            except grpc.RpcError as error:
                raise _error(method, error) from None

        setattr(self, method, call)
        return call

    def close(self) -> None:
        """Ends all calls and the connection."""
        self._channel.close()

    @property
    def _options(self) -> dict[str, Any]:
        return {"timeout": self._timeout, "metadata": self._metadata, "wait_for_ready": True}

    def _remote(self, method: str) -> Any:
        return self._channel.unary_unary(_PREFIX + method)


class _Futures:
    """The methods of a `RpcClient` that return futures."""

    def __init__(self, client: RpcClient) -> None:
        self._client = client

    def __getattr__(self, method: str) -> "Callable[..., concurrent.futures.Future[Any]]":
        if method.startswith("_"):
            raise AttributeError(method)
        client = self._client
        remote = client._remote(method)

        def call(*args: Any, **kwargs: Any) -> "concurrent.futures.Future[Any]":
            future: concurrent.futures.Future[Any] = concurrent.futures.Future()
            future.set_running_or_notify_cancel()
            sent = remote.future(encode((args, kwargs)), **client._options)
            sent.add_done_callback(lambda done: _pass_on(method, done, future))
            return future

        setattr(self, method, call)
        return call


def _pass_on(method: str, done: Any, future: "concurrent.futures.Future[Any]") -> None:
    try:
        future.set_result(_result(done.result()))
    except grpc.RpcError as error:
        future.set_exception(_error(method, error))
    except grpc.FutureCancelledError:
        future.set_exception(CallError(f"{method}: cancelled", grpc.StatusCode.CANCELLED))
    except Exception as error:
        future.set_exception(error)


def _result(answer: bytes) -> Any:
    try:
        decoded = decode(answer)
    except MessageError as error:
        raise CallError(f"the answer is no message: {error}") from None
    match decoded:
        case (True, result):
            return result
        case (False, str(text)):
            raise CallError(text)
    raise CallError("the answer is neither a result nor an error")


def _error(method: str, error: Any) -> CallError:
    code = error.code()
    return CallError(f"{method}: {code.name.lower()}: {error.details()}", code)
