"""What an operator can change by the admin port: end a tunnel.

Who may is guard.py, which has let the request pass before anything here is called.
"""

from __future__ import annotations

import json
import logging

from aiohttp import web

from isthmus.frame.admin.answers import json_reply, reply, settled
from isthmus.frame.admin.guard import current_operator
from isthmus.frame.admin.watched import Watched
from isthmus.logs import log
from isthmus.values import TunnelId

#: The path of the change; the star is the tunnel's number.
END_PATH = "/tunnels/*/end"
_MOST_DIGITS = 18
_log = logging.getLogger("isthmus.ports")


async def end_named(watched: Watched, request: web.BaseRequest) -> web.Response:
    """End the tunnel that the path names."""
    number = request.path.split("/")[2]
    if not (number.isascii() and number.isdigit() and len(number) <= _MOST_DIGITS):
        return reply(400, "the tunnel's id is not a whole number\n")
    return await end_tunnel(watched, request, TunnelId(int(number)))


async def end_tunnel(watched: Watched, request: web.BaseRequest, tunnel: TunnelId) -> web.Response:
    """End a tunnel for the operator who asks."""
    if watched.end_tunnel is None:
        return reply(404, "this program has no tunnels to end\n")
    operator = current_operator()
    connection_id = await settled(watched.end_tunnel(tunnel, operator))
    if connection_id is None:
        return reply(404, f"there is no tunnel {tunnel}\n")
    log(
        _log, logging.WARNING, "tunnel ended by an operator", tunnel=tunnel,
        connection=connection_id, operator=operator,
    )  # fmt: skip
    return json_reply(json.dumps({"ended": tunnel, "connectionId": connection_id}) + "\n")
