#!/usr/bin/env node
// An engine in JavaScript, written from protocol/README.md and the JSON Schema alone: no kit, no package. It answers every type
// of request, and has no tokenizer. Its model is a fixed pseudorandom function of the ids so far; only the size of the
// vocabulary, the context, BOS and EOS come from the model's `config.json`.
"use strict";

const fs = require("node:fs");
const path = require("node:path");

const MAX_LINE_BYTES = 16 * 1024 * 1024;
const MAX_U32 = 2 ** 32 - 1;
const CAPABILITIES = {
  devices: ["cpu"], dtypes: ["f32"], options: [], formats: ["safetensors"],
  stream: true, prompt: false, prompt_ids: true, batch: 4, concurrency: 4, use_cache_toggle: true,
  padding_sides: ["left", "right", "packed"], ignore_eos: "exact", sampling: true, score: true, facts: true,
};

/** An error that becomes the answer `failed`. */
class Failed extends Error {
  constructor(kind, message, hint) {
    super(message);
    Object.assign(this, { kind, hint });
  }
}

// The model.

/** A pseudorandom 32-bit integer of two integers. */
function mix(a, b) {
  let x = Math.imul(a ^ (b + 0x9e3779b9), 0x85ebca6b);
  x = Math.imul(x ^ (x >>> 13), 0xc2b2ae35);
  return (x ^ (x >>> 16)) >>> 0;
}

const stateAfter = (ids) => ids.reduce(mix, 1);

/** The log-probability of every id after the ids of this state. */
function logProbabilities(state, vocabulary) {
  const logits = Float64Array.from({ length: vocabulary }, (_, id) => (8 * mix(state, id)) / MAX_U32);
  const normalizer = Math.log(logits.reduce((sum, logit) => sum + Math.exp(logit), 0));
  return logits.map((logit) => logit - normalizer);
}

/** The id of the largest value, and the lowest id among equals. */
const greedy = (values) => values.reduce((best, value, id) => (value > values[best] ? id : best), 0);

/** Draws an id. `random` is between 0 and 1. */
function sample(values, { temperature, top_k, top_p }, random) {
  const ids = Array.from(values.keys()).sort((a, b) => values[b] - values[a] || a - b);
  const weights = ids.map((id) => Math.exp((values[id] - values[ids[0]]) / temperature));
  const all = weights.reduce((sum, weight) => sum + weight, 0);
  let [count, kept] = [0, 0];
  while (count < (top_k || ids.length) && count < ids.length && (count === 0 || kept < top_p * all)) kept += weights[count++];
  let left = random * kept;
  return ids[weights.slice(0, count).findIndex((weight) => (left -= weight) < 0)] ?? ids[0];
}

// Requests. Each of these checks refuses an invalid value with the field's name.

function field(object, name, isValid, expected, fallback) {
  const value = object[name] ?? undefined;
  if (value === undefined && fallback !== undefined) return fallback;
  if (value !== undefined && isValid(value)) return value;
  throw new Failed("bad_request", `\`${name}\`: expected ${expected}, found ${String(JSON.stringify(value)).slice(0, 80)}`);
}

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
const isInteger = (least, most) => (value) => Number.isSafeInteger(value) && value >= least && value <= most;
const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
const isIds = (least) => (value) => Array.isArray(value) && value.length >= least && value.every(isInteger(0, MAX_U32));
const isBatch = (isItem) => (value) => Array.isArray(value) && value.length > 0 && value.every(isItem);
const isText = (value) => typeof value === "string";
const integer = (object, name, least, most, fallback) =>
  field(object, name, isInteger(least, most), `an integer from ${least} to ${most}`, fallback);
const flag = (object, name, fallback) => field(object, name, (value) => typeof value === "boolean", "true or false", fallback);
const idOf = (object) =>
  field(object, "id", (value) => isText(value) || isInteger(0, Number.MAX_SAFE_INTEGER)(value), "a string, or an integer below 2^53", null);

function parseLine(bytes) {
  let request;
  try {
    request = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(bytes));
  } catch (error) {
    throw new Failed("bad_request", `not a line of JSON: ${error.message.slice(0, 200)}`);
  }
  if (!isObject(request)) throw new Failed("bad_request", "expected one JSON object");
  return request;
}

const PROMPT_FIELDS = {
  prompt: [isText, "a text"],
  prompts: [isBatch(isText), "one text or more"],
  prompt_ids: [isIds(1), "one id or more"],
  prompts_ids: [isBatch(isIds(1)), "a batch of ids"],
};

function parseGenerate(request) {
  const given = Object.keys(PROMPT_FIELDS).filter((name) => request[name] != null);
  if (given.length !== 1) throw new Failed("bad_request", `expected one of ${Object.keys(PROMPT_FIELDS).join(", ")}, found ${given.length}`);
  const prompts = field(request, given[0], ...PROMPT_FIELDS[given[0]]);
  const sampling = field(request, "sampling", isObject, "an object", {});
  const parsed = {
    field: given[0],
    prompts: given[0].startsWith("prompts") ? prompts : [prompts],
    tokens: integer(request, "max_new_tokens", 1, MAX_U32, 32),
    iterations: integer(request, "iterations", 1, 1e6, 1),
    warmup: integer(request, "warmup", 0, 1e6, 0),
    ignoreEos: flag(request, "ignore_eos", false),
    useCache: flag(request, "use_cache", true),
    stream: flag(request, "stream", false),
    sampling: {
      temperature: field(sampling, "temperature", (value) => isNumber(value) && value >= 0, "0 or more", 0),
      top_k: integer(sampling, "top_k", 0, MAX_U32, 0),
      top_p: field(sampling, "top_p", (value) => isNumber(value) && value > 0 && value <= 1, "a number in (0, 1]", 1),
      seed: integer(sampling, "seed", 0, Number.MAX_SAFE_INTEGER, 0),
    },
  };
  field(request, "padding", (value) => CAPABILITIES.padding_sides.includes(value), "a layout", "left");
  if (!parsed.field.endsWith("_ids")) throw new Failed("unsupported", `\`${parsed.field}\`: this engine has no tokenizer`, "send `prompt_ids`");
  if (parsed.prompts.length > CAPABILITIES.batch) throw new Failed("unsupported", `a batch of ${parsed.prompts.length}: the largest is ${CAPABILITIES.batch}`);
  return parsed;
}

function checkIds(lists, name, newTokens) {
  const { vocabulary_size, context_tokens } = loaded;
  if (lists.flat().some((id) => id >= vocabulary_size)) throw new Failed("bad_request", `\`${name}\`: an id outside the vocabulary of ${vocabulary_size}`);
  const longest = Math.max(...lists.map((ids) => ids.length));
  if (longest + newTokens > context_tokens) throw new Failed("context", `${longest} ids and ${newTokens} new tokens exceed the context of ${context_tokens}`);
}

// Answers. `zero` is the time at which the line was read; all times of an answer count from it.

const since = (zero) => Number(process.hrtime.bigint() - zero);
const write = (message) => process.stdout.write(JSON.stringify(message) + "\n");
/** Lets the process read its stdin, so that a cancel arrives during a generation. */
const readStdin = () => new Promise(setImmediate);

/** The facts of the loaded model, or null. */
let loaded = null;

function load(request) {
  const began = process.hrtime.bigint();
  const model = field(request, "model", (value) => isText(value) && value !== "", "a path");
  const context = integer(request, "context_tokens", 1, MAX_U32, 0);
  integer(request, "threads", 1, MAX_U32, 1);
  const option = Object.keys(field(request, "options", isObject, "an object", {}))[0];
  if (option !== undefined) throw new Failed("bad_request", `unknown option \`${option}\``, "this engine has no options");
  for (const [name, offered] of [["device", CAPABILITIES.devices], ["dtype", CAPABILITIES.dtypes]]) {
    const value = field(request, name, isText, "a string", offered[0]);
    if (!offered.includes(value)) throw new Failed("unsupported", `${name} \`${value}\`: expected one of ${offered.join(", ")}`);
  }
  let config;
  try {
    config = JSON.parse(fs.readFileSync(path.join(model, "config.json"), "utf8"));
  } catch (error) {
    throw new Failed("model", `cannot read the model: ${error.message}`);
  }
  if (!isInteger(1, MAX_U32)(config.vocab_size)) throw new Failed("model", `\`${model}\`: no \`vocab_size\` in its config`);
  const longest = config.max_position_embeddings ?? 2048;
  if (context > longest) throw new Failed("context", `\`context_tokens\`: ${context} is more than the model's ${longest}`);
  loaded = {
    device: "cpu", weights_dtype: "f32", compute_dtype: "f32", threads: 1, architecture: config.model_type,
    context_tokens: context || longest, vocabulary_size: config.vocab_size, eos_ids: [config.eos_token_id ?? []].flat(),
    bos_id: config.bos_token_id ?? undefined, use_cache: true, prefix_cache: false, libraries: { node: process.version },
  };
  const ns = since(began);
  return { load_ns: ns, phases: [{ name: "config", ns }], ...loaded };
}

/** Loads the model of the environment, if nothing is loaded. */
function ensureLoaded() {
  const { ORCHESTRATE_MODEL: model, ORCHESTRATE_DEVICE: device, ORCHESTRATE_DTYPE: dtype } = process.env;
  if (loaded) return undefined;
  if (!model) throw new Failed("model", "no model is loaded", "send `load`, or set ORCHESTRATE_MODEL");
  return load({ model, device, dtype });
}

async function generate(request, zero, job) {
  const parsed = parseGenerate(request);
  const facts = ensureLoaded();
  checkIds(parsed.prompts, parsed.field, parsed.tokens);
  const [warmup, iterations] = [[], []];
  while (iterations.length < parsed.iterations && !(job.cancelled && iterations.length > 0)) {
    const list = warmup.length < parsed.warmup ? warmup : iterations;
    list.push(await iterate(parsed, zero, job, parsed.stream && list === iterations ? list.length : null, job.id));
  }
  return { type: "generated", iterations, warmup_iterations: warmup, loaded: facts };
}

/** One iteration. `streamed` is its number if its tokens are streamed, or null. */
async function iterate(parsed, zero, job, streamed, id) {
  const { vocabulary_size, eos_ids } = loaded;
  const isGreedy = parsed.sampling.temperature < 1e-30;
  const start_ns = since(zero);
  const sequences = parsed.prompts.map((ids) => ({ prompt_tokens: ids.length, output_ids: [], token_ns: [], finish: "length" }));
  const states = parsed.prompts.map(stateAfter);
  const isOpen = (sequence) => sequence.finish === "length" && sequence.output_ids.length < parsed.tokens;
  while (!job.cancelled && sequences.some(isOpen)) {
    for (const [index, sequence] of sequences.entries()) {
      if (!isOpen(sequence)) continue;
      const state = parsed.useCache ? states[index] : stateAfter([...parsed.prompts[index], ...sequence.output_ids]);
      const values = logProbabilities(state, vocabulary_size);
      const seed = mix(mix(parsed.sampling.seed >>> 0, parsed.sampling.seed / 2 ** 32), mix(index, sequence.output_ids.length));
      const token = isGreedy ? greedy(values) : sample(values, parsed.sampling, seed / 2 ** 32);
      const ns = since(zero);
      if (streamed !== null) {
        write({ type: "token", id, iteration: streamed, sequence: index, index: sequence.output_ids.length, ids: [token], ns });
      }
      sequence.output_ids.push(token);
      sequence.token_ns.push(ns);
      states[index] = mix(states[index], token);
      if (eos_ids.includes(token) && !parsed.ignoreEos) sequence.finish = "eos";
    }
    await readStdin();
  }
  for (const sequence of sequences.filter(isOpen)) sequence.finish = "cancelled";
  return { start_ns, end_ns: since(zero), sequences };
}

function score(request, zero) {
  const sequences = field(request, "sequences", isBatch(isIds(2)), "lists of two ids or more");
  ensureLoaded();
  checkIds(sequences, "sequences", 0);
  const logprobs = sequences.map((ids) =>
    ids.slice(1).map((id, index) => logProbabilities(stateAfter(ids.slice(0, index + 1)), loaded.vocabulary_size)[id]));
  return { type: "scored", logprobs, ns: since(zero) };
}

const ANSWERS = {
  hello: () => ({ type: "hello", protocol: 1, engine: "node-engine", version: "1", deterministic: true, capabilities: CAPABILITIES }),
  load: (request) => ({ type: "loaded", ...load(request) }),
  generate,
  score,
  facts: () => ({ type: "facts", ...loaded }),
  shutdown: () => ({ type: "bye" }),
};

// The conversation. Requests wait in a queue; `generate` requests with an `id` may overlap, every other request runs alone.

const [waiting, running] = [[], new Set()];
let isShutDown = false;

async function answer(job) {
  running.add(job);
  try {
    if (job.failed) throw job.failed;
    const message = await ANSWERS[job.type](job.request, job.zero, job);
    write({ type: message.type, id: job.id ?? undefined, ...message });
  } catch (error) {
    const kind = error instanceof Failed ? error.kind : "internal";
    write({ type: "failed", id: job.id ?? undefined, kind, message: error.message, hint: error.hint });
  }
  running.delete(job);
  isShutDown ||= job.type === "shutdown";
  startWaiting();
}

function startWaiting() {
  const overlaps = (job) => job.type === "generate" && job.id !== null && !job.failed;
  const mayStart = (job) => running.size === 0 || (overlaps(job) && [...running].every(overlaps) && running.size < CAPABILITIES.concurrency);
  while (!isShutDown && waiting.length > 0 && mayStart(waiting[0])) answer(waiting.shift());
  if (isShutDown) process.exit(0);
}

function accept(bytes, zero) {
  const job = { id: null, type: null, request: null, zero, cancelled: false, failed: null };
  try {
    if (bytes === null) throw new Failed("bad_request", `a line of more than ${MAX_LINE_BYTES} bytes`);
    job.request = parseLine(bytes);
    job.id = idOf(job.request);
    job.type = field(job.request, "type", isText, "a string", "generate");
    if (job.type === "cancel") {
      for (const other of [...running, ...waiting]) other.cancelled ||= job.id !== null && other.id === job.id;
      return;
    }
    if (!Object.hasOwn(ANSWERS, job.type)) throw new Failed("bad_request", `unknown type \`${job.type.slice(0, 80)}\``);
  } catch (error) {
    job.failed = error;
  }
  waiting.push(job);
  startWaiting();
}

/** The bytes of the line so far, or null if it is too long. */
let line = [];
let lineBytes = 0;

process.stdin.on("data", (chunk) => {
  const zero = process.hrtime.bigint();
  for (let start = 0; start < chunk.length; ) {
    const newline = chunk.indexOf(10, start);
    const part = chunk.subarray(start, newline < 0 ? chunk.length : newline);
    lineBytes += part.length;
    line = lineBytes > MAX_LINE_BYTES ? null : [...line, part];
    if (newline < 0) return;
    accept(line && Buffer.concat(line), zero);
    [line, lineBytes] = [[], 0];
    start = newline + 1;
  }
});
process.stdin.on("end", () => {
  if (lineBytes > 0) accept(line && Buffer.concat(line), process.hrtime.bigint());
});
