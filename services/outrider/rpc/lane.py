"""A lane: a socket of this machine beside a `Draft` stream, written and read by the two engine threads themselves.

A message of the stream passes four threads and two event loops, which on one machine costs more than a step of a small model; on a lane
it passes none. Where a drafter listens at `unix:/path`, its lanes are at `/path.lane`: whoever dials the drafter through a relay or a
network finds none there and uses the stream alone. What is said is the same (whole protobuf messages, in order); handshake, pings and the
pair's life stay with the stream, and either of the two breaking ends both. Must not know frames or sessions.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct

from outrider.errors import ProtocolViolation, Unavailable

_LOG = logging.getLogger(__name__)
TOKEN_BYTES = 16
ACK = b"\x06"
OPEN_TIMEOUT_S = 2.0
SUFFIX = ".lane"
_UNIX = "unix:"
_LENGTH = struct.Struct("<I")
_RECEIVE_BYTES = 1 << 18
# A socket's buffer has room for some hundred messages that were sent one by one; only who packs crumbs to keep this thread busy gets here.
MAX_MESSAGES_AT_ONCE = 4096
_MAX_FD = 1000  # select's bound is 1,024


class Lane:
    """One end, owned by one thread; nothing here blocks. Both directions: 4 bytes of length, little-endian, then the message.

    max_message_bytes: of what is received; more is a ProtocolViolation.
    """

    def __init__(self, end: socket.socket, max_message_bytes: int) -> None:
        end.setblocking(False)
        self._end = end
        self._max_message_bytes = max_message_bytes
        self._unsent = bytearray()
        self._unread = bytearray()
        self._buffer = memoryview(bytearray(_RECEIVE_BYTES))

    def fileno(self) -> int:
        """For select."""
        return self._end.fileno()

    @property
    def backlog(self) -> int:
        """Bytes that the socket had no room for yet."""
        return len(self._unsent)

    def send(self, message: bytes) -> None:
        """Send a message, or keep what there is no room for until `flush`. Raises Unavailable when the lane is broken."""
        self._unsent += _LENGTH.pack(len(message))
        self._unsent += message
        self.flush()

    def flush(self) -> None:
        """Send what waits, as far as there is room. Raises Unavailable when the lane is broken."""
        try:
            num_sent = self._end.send(self._unsent)
        except BlockingIOError:
            return
        except OSError as error:
            raise Unavailable(f"the lane broke: {error}") from error
        del self._unsent[:num_sent]

    def receive(self) -> list[bytes]:
        """The whole messages that are there, in order; what one call reads is bounded, so that no peer can keep a thread from its work.

        Raises Unavailable when the other side has closed, ProtocolViolation when a message is longer or more come at once than allowed.
        """
        try:
            self._unread += self._read()
        except BlockingIOError:
            return []
        messages: list[bytes] = []
        begin = 0
        while len(self._unread) >= begin + _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._unread, begin)
            if length > self._max_message_bytes:
                raise ProtocolViolation(f"a message of {length} bytes on a lane, at most {self._max_message_bytes}")
            end = begin + _LENGTH.size + length
            if len(self._unread) < end:
                break
            if len(messages) == MAX_MESSAGES_AT_ONCE:
                raise ProtocolViolation(f"more than {MAX_MESSAGES_AT_ONCE} messages at once on a lane")
            messages.append(bytes(self._unread[begin + _LENGTH.size : end]))
            begin = end
        del self._unread[:begin]
        return messages

    def close(self) -> None:
        """Both directions, for good."""
        self._end.close()

    def _read(self) -> memoryview:
        """A view that the next call overwrites."""
        try:
            num_read = self._end.recv_into(self._buffer)
        except BlockingIOError:
            raise
        except OSError as error:
            raise Unavailable(f"the lane broke: {error}") from error
        if not num_read:
            raise Unavailable("the other side closed the lane")
        return self._buffer[:num_read]


def lane_path(address: str) -> str | None:
    """Where a drafter that listens there has its lanes; None where it has none."""
    return address.removeprefix(_UNIX) + SUFFIX if address.startswith(_UNIX) else None


async def open_lane(address: str, token: bytes, max_message_bytes: int) -> Lane | None:
    """The lane of a stream to this address; None where there is none, which costs speed only. token: as the drafter's Welcome says."""
    path = lane_path(address)
    if path is None or not token:
        return None
    try:
        async with asyncio.timeout(OPEN_TIMEOUT_S):
            return Lane(await _knock(path, token), max_message_bytes)
    except (OSError, TimeoutError) as error:
        _LOG.info("no lane to %s, its stream is used alone: %s", address, str(error) or "it did not answer")
        return None


def check_selectable(end: socket.socket) -> None:
    """Raises OSError for a socket that select, and with it a whole engine thread, would fail on."""
    if end.fileno() > _MAX_FD:
        raise OSError("too many files are open")


async def _knock(path: str, token: bytes) -> socket.socket:
    """The socket that was opened; raises OSError when nobody opens."""
    end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        end.setblocking(False)
        check_selectable(end)
        await _be_admitted(end, path, token)
    except BaseException:
        end.close()
        raise
    return end


async def _be_admitted(end: socket.socket, path: str, token: bytes) -> None:
    loop = asyncio.get_running_loop()
    await loop.sock_connect(end, path)
    await loop.sock_sendall(end, token)
    if await loop.sock_recv(end, len(ACK)) != ACK:
        raise OSError("it was refused")
