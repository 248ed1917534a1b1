"""Client channels: options, limits and waiting until a peer answers.

Knows grpc.aio channels. Must not know services. Retries are off: the callers know which of their calls may be repeated. Proxies are
off: peers are named directly. Addresses are `host:port` or `unix:/path`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import grpc

from outrider.errors import Unavailable
from outrider.rpc.address import check_address

MAX_MESSAGE_BYTES = 16 * 2**20
KEEPALIVE_TIME_MS = 20_000
# Said twice to grpc: its keepalive timeout bounds how long bytes may go unacknowledged by the peer's kernel; how long the peer itself may
# owe an answer to a ping is another option, a minute unless it is set.
KEEPALIVE_TIMEOUT_MS = 10_000
FIRST_RECONNECT_BACKOFF_MS = 100
MAX_RECONNECT_BACKOFF_MS = 500
# What grpc calls the shortest pause between two tries is how long a try may take, pauses aside. A connection is ready after two round trips
# (TCP's, and the peer's first frame): a link of 600 ms has that in 1.2 s. A machine that is gone holds a try up for as long.
CONNECT_TIMEOUT_MS = 2_000
READY_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class ChannelLimits:
    """max_message_bytes: both ways. receive_window_bytes: how much a peer may send on one stream before we read it; None lets grpc
    choose (64 KiB and up, by measured bandwidth), a number keeps a slow reader's backpressure short."""

    max_message_bytes: int = MAX_MESSAGE_BYTES
    receive_window_bytes: int | None = None


def open_channel(address: str, limits: ChannelLimits | None = None) -> grpc.aio.Channel:
    """A channel that connects on first use and reconnects by itself; the caller closes it. Raises InvalidRequest on a bad address."""
    limits = limits or ChannelLimits()
    check_address("address", address)
    options: list[tuple[str, int]] = [
        ("grpc.max_send_message_length", limits.max_message_bytes),
        ("grpc.max_receive_message_length", limits.max_message_bytes),
        ("grpc.keepalive_time_ms", KEEPALIVE_TIME_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.http2.ping_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.initial_reconnect_backoff_ms", FIRST_RECONNECT_BACKOFF_MS),
        ("grpc.min_reconnect_backoff_ms", CONNECT_TIMEOUT_MS),
        ("grpc.max_reconnect_backoff_ms", MAX_RECONNECT_BACKOFF_MS),
        ("grpc.enable_retries", 0),
        ("grpc.enable_http_proxy", 0),
        ("grpc.use_local_subchannel_pool", 1),
    ]
    if limits.receive_window_bytes is not None:
        options += [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", limits.receive_window_bytes)]
    return grpc.aio.insecure_channel(address, options=options)


async def wait_ready(channel: grpc.aio.Channel, address: str, timeout_s: float = READY_TIMEOUT_S) -> None:
    """Return once the channel is connected; raises Unavailable naming the address when it is not within timeout_s."""
    try:
        async with asyncio.timeout(timeout_s):
            await channel.channel_ready()
    except TimeoutError:
        raise Unavailable(f"{address} did not answer within {timeout_s:g} s") from None


async def wait_connected(channel: grpc.aio.Channel, address: str, timeout_s: float) -> None:
    """As wait_ready, for a caller that has somebody else to ask: raises Unavailable as soon as nobody listens at the address, not only when
    nobody does within timeout_s."""
    try:
        async with asyncio.timeout(timeout_s):
            state = channel.get_state(try_to_connect=True)
            while state is not grpc.ChannelConnectivity.READY:
                if state in (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN):
                    raise Unavailable(f"nobody answers at {address}")
                await channel.wait_for_state_change(state)
                state = channel.get_state(try_to_connect=True)
    except TimeoutError:
        raise Unavailable(f"{address} did not answer within {timeout_s:g} s") from None
