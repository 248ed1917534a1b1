// Streams one answer and prints it as one line of JSON. Knows the protos only; nothing of Outrider's Python.
//
//   node client.js PROTO_ROOT ADDRESS PROMPT [MAX_TOKENS]
"use strict";

const path = require("node:path");
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");

const DEADLINE_MS = 10_000;

const [protoRoot, address, prompt, maxTokens] = process.argv.slice(2);
if (!prompt) {
  console.error("usage: node client.js PROTO_ROOT ADDRESS PROMPT [MAX_TOKENS]");
  process.exit(2);
}

const definition = loader.loadSync(path.join(protoRoot, "outrider/v1/generation.proto"), {
  includeDirs: [protoRoot],
  keepCase: true,
  longs: String, // seeds have 64 bits
  enums: String,
  defaults: true, // an empty text is "", not undefined
  oneofs: true,
});
const { GenerationService } = grpc.loadPackageDefinition(definition).outrider.v1;
const client = new GenerationService(address, grpc.credentials.createInsecure());

const request = { prompt, sampling: { temperature: 0, seed: "18446744073709551615" } };
if (maxTokens) request.max_tokens = Number(maxTokens);

let failure = null;
const answer = { text: "", token_ids: [], num_deltas: 0 };
const call = client.Generate(request, { deadline: Date.now() + DEADLINE_MS });
call.on("data", (message) => {
  if (message.event === "started") answer.started = message.started;
  if (message.event === "finished") answer.finished = message.finished;
  if (message.event === "done") answer.usage = message.done.usage;
  if (message.event === "delta") {
    answer.num_deltas += 1;
    answer.text += message.delta.text;
    answer.token_ids.push(...message.delta.token_ids);
  }
});
call.on("error", (error) => {
  failure = { error: { code: grpc.status[error.code], details: error.details } };
});
call.on("close", () => {
  console.log(JSON.stringify(failure ?? answer));
  client.close();
  process.exitCode = failure ? 1 : 0;
});
