"""A fixture: an MCP server made with the protocol's Python package, with one tool, `who`, that says a digest of the variable
WHO. With --http it is reached over HTTP, prints its URL, and says a digest of the header X-Who."""

import hashlib
import os
import socket
import sys

import uvicorn
from mcp.server.mcpserver import Context, MCPServer

server = MCPServer("who")


@server.tool()
def who(context: Context) -> str:
    told = (context.headers or {}).get("x-who") or os.environ["WHO"]
    return hashlib.sha256(told.encode()).hexdigest()[:8]


if "--http" in sys.argv:
    listening = socket.create_server(("127.0.0.1", 0))
    print(f"http://127.0.0.1:{listening.getsockname()[1]}/mcp", flush=True)
    uvicorn.Server(uvicorn.Config(server.streamable_http_app(), log_level="error")).run(sockets=[listening])
else:
    server.run()
