// A client that uses the npm package `ws`: sends each line of stdin as a frame, and prints each frame that comes.
// usage: node ws.mjs <folder with node_modules> <address of the socket> <token>
import { createRequire } from "node:module";
import { join } from "node:path";
import { createInterface } from "node:readline";

const [modules, address, token] = process.argv.slice(2);
const WebSocket = createRequire(join(modules, "x.js"))("ws");
const socket = new WebSocket(address, { headers: { Authorization: `Bearer ${token}` }, perMessageDeflate: false });
socket.on("open", () => {
  const lines = createInterface({ input: process.stdin });
  lines.on("line", (line) => socket.send(line));
  lines.on("close", () => socket.close());
});
socket.on("message", (data) => process.stdout.write(data + "\n"));
socket.on("error", (error) => console.error(String(error)));
socket.on("close", (code, reason) => {
  console.error(`closed: ${code} ${reason}`);
  process.exitCode = 0;
  process.stdin.destroy();
});
