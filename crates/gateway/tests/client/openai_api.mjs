// Runs the npm client `openai`: a stream with a call, its result, and a response that is followed again.
import { createRequire } from "node:module";
import path from "node:path";

const [folder, url, token, steps] = process.argv.slice(2);
const { default: OpenAI } = await import(createRequire(path.join(folder, "x")).resolve("openai"));
const api = new OpenAI({ baseURL: `${url}/v1`, apiKey: token, maxRetries: 0 });

const model = (await api.models.list()).data[0].id;
const tools = [{ type: "function", function: { name: "color", parameters: { type: "object", properties: {} } } }];
const messages = [{ role: "user", content: steps }];
const stream = api.chat.completions.stream({ model, messages, tools });
const first = (await stream.finalChatCompletion()).choices[0];
messages.push(first.message);
messages.push({ role: "tool", tool_call_id: first.message.tool_calls[0].id, content: "blue" });
const last = await api.chat.completions.create({ model, messages, tools });

const begun = await api.responses.create({ model, input: JSON.stringify([[{ event: "final", content: "x" }]]), background: true });
const types = [];
for await (const event of await api.responses.retrieve(begun.id, { stream: true })) types.push(event.type);
const { status } = await api.responses.retrieve(begun.id);

console.log(JSON.stringify({
  text: first.message.content, finish: first.finish_reason, last: last.choices[0].message.content, types, status,
}));
