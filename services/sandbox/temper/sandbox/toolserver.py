"""The standard tools as an MCP server (Model Context Protocol): their schemas as they are, one sandbox for the client.

What is wrong with a call is its result, so that a model can read it and try again: nothing is refused as a protocol error.
"""

import json
from typing import Any

import mcp_types as types
from mcp.server.lowlevel import Server

from temper.runtime.errors import TemperError
from temper.sandbox.seats import Seat
from temper.sandbox.toolcalls import OFFERED

_SUBMITTED = "error: an answer was submitted already"


def tool_server(seat: Seat) -> "Server[Any]":
    """A server for one session over `seat`."""
    submitted = False

    async def list_tools(_: Any, __: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        tools = [
            types.Tool(name=each.name, description=each.description, input_schema=dict(each.parameters))
            for each in OFFERED
        ]
        return types.ListToolsResult(tools=tools)

    async def call_tool(_: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        nonlocal submitted
        if submitted:
            return _result(_SUBMITTED, is_error=True)
        try:
            reply = await seat.call(params.name, json.dumps(params.arguments or {}))
        except TemperError as error:
            return _result(f"error: {error}", is_error=True)
        submitted = reply.HasField("answer")
        return _result(reply.observation, is_error=reply.is_error)

    return Server("temper", on_list_tools=list_tools, on_call_tool=call_tool)


def _result(text: str, *, is_error: bool) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=is_error)
