"""How services and clients reach each other over links that are longer than a machine.

pytest tests/unit/test_rpc_channel.py
"""

from __future__ import annotations

import asyncio

from outrider.rpc.channel import open_channel, wait_connected

FAR_S = 0.7  # two round trips of 350 ms, half around the world
SETTINGS = bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))  # HTTP/2: an empty frame of settings, the first that a server sends
WAIT_S = 10.0


async def test_a_peer_half_around_the_world_is_connected_to_at_the_first_try() -> None:
    """It took the time to the next try for that of one: nobody met whose first frame took more than a tenth of a second, and half of one
    never."""
    lines: list[asyncio.StreamWriter] = []

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines.append(writer)
        asyncio.get_running_loop().call_later(FAR_S, writer.write, SETTINGS)

    peer = await asyncio.start_server(answer, "127.0.0.1", 0)
    host, port = peer.sockets[0].getsockname()
    async with open_channel(f"{host}:{port}") as channel:
        await wait_connected(channel, "the peer", WAIT_S)
    assert len(lines) == 1
    for line in lines:
        line.close()
    peer.close()
    await peer.wait_closed()
