"""Compares `orchestrate -s serve` with aiperf; scripts/serve-against-load-generator lists the options."""

import argparse
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "engines/kit/python"))
from checkout import RELEASE, ROOT
from comparison import exit_with, find_paired_fault, paired_interval

MAX_DIFFERENCE = 0.05
# The requests that the server computes together: its own default.
SLOTS = 4
# The time for the start of the server, and for one window of a program.
MAX_SECONDS = 600
METRICS = ("TTFT", "ITL")


def main():
    options = parsed_options()
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        model = options.model or synthesised_model(folder)
        with Server(model, options, folder) as server:
            programs = {"aiperf": Generator(server, options, folder), "orchestrate": Orchestrate(server, model, options, folder)}
            loads = [Load(users=users) for users in options.users] + [Load(rate=rate) for rate in rates(server, options)]
            print(f"{model.name}, {options.threads} threads, {SLOTS} slots, {options.rounds} rounds of {options.requests} requests")
            print(f"{options.prompt} tokens of prompt, {options.tokens} new tokens; medians in ms; the ratio is the time of orchestrate")
            print("divided by that of aiperf: the geometric mean of the rounds' ratios, and its 95 % interval\n")
            print(f"{'load':<24}{'':<6}{'aiperf':>10}{'orchestrate':>13}{'ratio':>8}   {'interval':<16}", flush=True)
            exit_with(compare(loads, programs, options))


def parsed_options():
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--rates", type=lambda text: [float(rate) for rate in text.split(",")])
    parser.add_argument("--users", type=lambda text: [int(users) for users in text.split(",")], default=[])
    threads = max(1, len(os.sched_getaffinity(0)) - 1)
    for name, default in (("prompt", 128), ("tokens", 32), ("requests", 16), ("rounds", 12), ("threads", threads)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error("--rounds: an interval needs 2 rounds or more")
    if options.requests < 8 or options.tokens < 2:
        parser.error("a window needs 8 requests or more, of 2 tokens or more")
    return options


def synthesised_model(folder):
    file = folder / "gpt2-q8_0.gguf"
    run([RELEASE / "orchestrate", "model", "synth", "gpt2", "--format", "gguf", "--dtype", "q8_0", "--out", file])
    return file


def run(command, **more):
    command = [str(part) for part in command]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=MAX_SECONDS, **more)
    except FileNotFoundError:
        raise SystemExit(f"error: no `{command[0]}`\nhint: cargo build --release") from None
    if done.returncode != 0:
        output = (done.stderr.strip() or done.stdout.strip())[-3000:]
        raise SystemExit(f"error: `{' '.join(command)}` ended with {done.returncode}\n{output}")
    return done.stdout


def rates(server, options):
    """The requested rates; by default half and 1.25 of the rate at which one user makes requests."""
    if options.rates is not None or options.users:
        return options.rates or []
    times = [server.seconds_of_request(options) for _ in range(4)][1:]
    # `--request-rate` takes thousandths.
    return [round(share / statistics.median(times), 3) for share in (0.5, 1.25)]


def compare(loads, programs, options):
    """Measures both programs in turn under each load. Returns the fault of each metric of each load, or None."""
    windows = {load: {program: [] for program in programs} for load in loads}
    for round in range(options.rounds):
        # The order alternates, so that a machine that slows down favours neither program.
        for load in loads:
            for program in programs if round % 2 == 0 else reversed(programs):
                window = programs[program].measure(load)
                windows[load][program].append(window)
                text = "  ".join(f"{name} {1e3 * value:.2f} ms" for name, value in zip(METRICS, window))
                print(f"round {round + 1}, {load}, {program}: {text}", file=sys.stderr)
    faults = []
    for load, by_program in windows.items():
        for index, metric in enumerate(METRICS):
            theirs, ours = ([window[index] for window in by_program[program]] for program in programs)
            ratios = [own / other for own, other in zip(ours, theirs, strict=True)]
            ratio, low, high = paired_interval(ratios)
            medians = f"{1e3 * statistics.median(theirs):>10.2f}{1e3 * statistics.median(ours):>13.2f}"
            print(f"{str(load):<24}{metric:<6}{medians}{ratio:>8.3f}   [{low:.3f}, {high:.3f}]", flush=True)
            faults.append(find_paired_fault(f"{load}, {metric}", ratios, MAX_DIFFERENCE))
    return faults


class Load:
    """A number of users, or a rate of requests that arrive at equal times."""

    def __init__(self, users=None, rate=None):
        self.users, self.rate = users, rate

    def __str__(self):
        if self.rate is None:
            return f"{self.users} user{'s' if self.users > 1 else ''}"
        return f"{self.rate:g} requests/s"


def medians(requests, options):
    """The medians of TTFT and ITL in seconds, without the first and the last eighth. Each request has its start, its TTFT, the
    time from its first text to its last one, its tokens of prompt and its new tokens."""
    requests = sorted(requests)
    if len(requests) != options.requests:
        raise SystemExit(f"error: {len(requests)} of {options.requests} requests were answered")
    for _, _, _, prompt, tokens in requests:
        if (prompt, tokens) != (options.prompt, options.tokens):
            counts = f"{prompt} tokens of prompt and {tokens} new tokens"
            raise SystemExit(f"error: a request had {counts}, and {options.prompt} and {options.tokens} were requested")
    margin = len(requests) // 8
    kept = requests[margin : len(requests) - margin]
    return statistics.median(it[1] for it in kept), statistics.median(it[2] / (it[4] - 1) for it in kept)


class Server:
    """A llama-server, with the settings of the engine `llama-server`: no request uses the prompt of another one."""

    def __init__(self, model, options, folder):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        place = run([ROOT / "scripts/python-of", "llama-server", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"])
        context = SLOTS * (options.prompt + options.tokens + 32)
        command = [Path(place.strip()) / "bin/llama-server", "--model", model, "--host", "127.0.0.1", "--port", port]
        command += ["--threads", options.threads, "--threads-batch", options.threads, "--parallel", SLOTS, "--ctx-size", context]
        command += ["--cache-type-k", "f16", "--cache-type-v", "f16", "--no-cache-prompt", "--cache-ram", 0]
        self.log = folder / "server.log"
        with self.log.open("w") as log:
            command = [str(part) for part in command]
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def __enter__(self):
        ends = time.monotonic() + MAX_SECONDS
        while not self.is_healthy():
            if self.process.poll() is not None or time.monotonic() > ends:
                self.__exit__()
                raise SystemExit(f"error: llama-server does not start\n{self.log.read_text()[-2000:]}")
            time.sleep(0.1)
        (self.model,) = json.loads(urllib.request.urlopen(f"{self.url}/v1/models").read())["data"]
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def is_healthy(self):
        try:
            return urllib.request.urlopen(f"{self.url}/health").status == 200
        except OSError:
            return False

    def body(self, options):
        """The fields of the engine `openai`, with a prompt of its own."""
        ids = random.choices(range(self.model["meta"]["n_vocab"]), k=options.prompt)
        usage = {"include_usage": True, "continuous_usage_stats": True}
        fields = {"model": self.model["id"], "prompt": ids, "max_tokens": options.tokens, "stream": True, "ignore_eos": True}
        return {**fields, "temperature": 0, "stream_options": usage, "timings_per_token": True}

    def seconds_of_request(self, options):
        request = urllib.request.Request(f"{self.url}/v1/completions", json.dumps(self.body(options)).encode())
        request.add_header("Content-Type", "application/json")
        began = time.monotonic()
        urllib.request.urlopen(request).read()
        return time.monotonic() - began


class Generator:
    """aiperf, started anew for each window: its start is before the window."""

    def __init__(self, server, options, folder):
        self.server, self.options, self.folder = server, options, folder

    def measure(self, load):
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            return self.measure_in(Path(folder), load)

    def measure_in(self, folder, load):
        inputs = folder / "inputs.json"
        bodies = [self.server.body(self.options) for _ in range(self.options.requests)]
        data = [{"session_id": str(number), "payloads": [body]} for number, body in enumerate(bodies)]
        inputs.write_text(json.dumps({"data": data}))
        command = [Path(sys.executable).parent / "aiperf", "profile", "--model", self.server.model["id"], "--url", self.server.url]
        command += ["--endpoint-type", "completions", "--streaming", "--use-server-token-count"]
        command += ["--input-file", inputs, "--custom-dataset-type", "inputs_json", "--dataset-sampling-strategy", "sequential"]
        command += ["--request-count", self.options.requests]
        if load.rate is None:
            command += ["--concurrency", load.users]
        else:
            command += ["--request-rate", load.rate, "--arrival-pattern", "constant"]
        # One process sends, one computes values, and none collects values of GPUs or of the server.
        command += ["--workers-max", 1, "--record-processors", 1, "--no-gpu-telemetry", "--no-server-metrics", "--ui", "none"]
        command += ["--export-level", "records", "--artifact-dir", folder / "results"]
        offline = {name: "1" for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE")}
        storage = {"AIPERF_DATASET_MMAP_CACHE_ENABLED": "false", "AIPERF_DATASET_MMAP_BASE_PATH": str(folder)}
        run(command, cwd=folder, env={**os.environ, **offline, **storage}, stdin=subprocess.DEVNULL)
        (records,) = (folder / "results").rglob("profile_export.jsonl")
        return medians([self.request(json.loads(line)) for line in records.read_text().splitlines()], self.options)

    @staticmethod
    def request(record):
        if record.get("error"):
            raise SystemExit(f"error: aiperf: a request failed: {record['error']}")
        values = {name: metric["value"] for name, metric in record["metrics"].items() if isinstance(metric, dict)}
        units = {record["metrics"][name]["unit"] for name in ("time_to_first_token", "inter_token_latency")}
        if units != {"ms"}:
            raise SystemExit(f"error: aiperf has other units than expected: {units}")
        prompt, tokens = int(values["usage_prompt_tokens"]), int(values["output_sequence_length"])
        ttft, itl = values["time_to_first_token"] / 1e3, values["inter_token_latency"] / 1e3
        return record["metadata"]["request_start_ns"], ttft, itl * (tokens - 1), prompt, tokens


class Orchestrate:
    """A run of `serve` with one window, by the engine `openai`."""

    def __init__(self, server, model, options, folder):
        self.server, self.model, self.options, self.folder = server, model, options, folder

    def measure(self, load):
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            return self.measure_in(Path(folder), load)

    def measure_in(self, folder, load):
        options = self.options
        command = [RELEASE / "orchestrate", "-e", "openai", "--set", f"url={self.server.url}", "-m", self.model, "-s", "serve"]
        command += ["--requests", options.requests, "--lengths", "even", "--prompt-tokens", options.prompt, "--prompts", "random"]
        command += ["--new-tokens", options.tokens]
        if load.rate is None:
            command += ["--concurrency", load.users]
        else:
            command += ["--request-rate", load.rate, "--burstiness", "even"]
        command += ["--blocks", 1, "--iterations", 1, "--warmup", 0, "--verifier", "none", "--no-setup", "--wait"]
        run([*command, "--quiet", "--results", folder], stdin=subprocess.DEVNULL)
        (record,) = folder.glob("*.jsonl")
        entries = [json.loads(line) for line in record.read_text().splitlines()]
        samples = [it for it in entries if it["entry"] == "sample" and it.get("kind", it.get("role")) == "measured"]
        if len(samples) != 1:
            reasons = [it for it in entries if it["entry"] in ("failure", "closed")]
            raise SystemExit(f"error: orchestrate measured {len(samples)} windows: {reasons}")
        (sample,) = samples
        sequences = sample["iteration"]["sequences"]
        return medians([self.request(*both) for both in zip(sample["requests"], sequences, strict=True)], options)

    @staticmethod
    def request(times, sequence):
        texts = [chunk["ns"] for chunk in sequence["chunks"] if chunk["text"]]
        sent, first, last = times["sent_ns"], texts[0], texts[-1]
        return sent, (first - sent) / 1e9, (last - first) / 1e9, sequence["prompt_tokens"], sequence["output_tokens"]


if __name__ == "__main__":
    main()
