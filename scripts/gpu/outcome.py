"""Summarises reports (`orchestrate report --format json`, on stdin) for scripts/gpu-check.

    outcome.py --has-measured                  exits with 0 if the report has samples
    outcome.py --judge NAME DEVICE RECORD CODE prints a line for each engine of this run, and one for its record; exits with 4
                                               if something is wrong, failed or was not measured. CODE is the run's exit status
    outcome.py --gpus CAPABILITY               reads `orchestrate machine --format json`: prints the GPUs, and whether the
                                               programs were built for them
    outcome.py --hints DEVICE PROGRAMS         reads a table: replaces hints that need a build, which is impossible here

Runs on the GPU machine, in the checkout: Python 3.8 and its standard library.
"""

import json
import re
import sys
from pathlib import Path

DONE, FAILED = 0, 4
SET_UP = re.compile(r"hint: orchestrate setup (?P<engine>\S+)(?P<device> --device \S+)?$")


def main():
    action, arguments = sys.argv[1], sys.argv[2:]
    if action == "--hints":
        sys.stdout.writelines(replace_hint(line, *arguments) for line in sys.stdin)
        return
    try:
        document = json.load(sys.stdin)
    except ValueError:
        sys.exit("  cannot read the report: it is not JSON")
    if action == "--has-measured":
        sys.exit(0 if any(case["samples"] for case in document["cases"]) else 1)
    if action == "--gpus":
        print("\n".join(gpus(document["machine"].get("gpus", []), *arguments)))
        return
    name, device, record, code = arguments
    lines, code = outcome(document, device, record, int(code))
    print("\n".join([f"on {name}:", *lines]))
    sys.exit(code)


def outcome(report, device, record, code=DONE):
    """Returns the lines to print, and the exit code. `code` is the exit code of the run. It counts presets for other devices as
    failures, but not engines of `--all` that cannot start. So this function judges each failure in the report itself. If the
    report has none, `code` shows whether something else failed."""
    outputs = {output["engine"]: output for output in report["outputs"]}
    measured = {case["engine"]["label"] for case in report["cases"] if case["samples"]}
    faulty = [(case["engine"], case["failure"]) for case in report["cases"] if case["failure"]]
    faulty += [(failed["engine"], failed["failure"]) for failed in report["failed"]]
    failures = {engine["label"]: (engine, failure) for engine, failure in faulty}
    lines, is_failure, has_excused = [], not measured, False
    for label in sorted(measured | set(failures)):
        engine, failure = failures.get(label, (None, None))
        output = outputs.get(label)
        parts = []
        if label in measured:
            parts.append(status(output) if output else "unverified")
            is_failure = is_failure or (output or {}).get("status") == "wrong"
        if failure and label not in measured and is_excused(engine, failure, device):
            parts.append(f"left out: {failure['message']}")
            has_excused = True
        elif failure:
            extent = "a part of it failed" if label in measured else "not measured"
            parts.append(f"{extent}: {failure['message']}")
            is_failure = True
        lines.append(f"  {label}: {'; '.join(parts)}")
    if not measured:
        lines.append(f"  nothing was measured: no engine could run on `{device}` here")
    if code == FAILED and not is_failure and not has_excused:
        is_failure = True
        lines.append("  something else failed: see the record")
    lines.append(f"  record: {record}")
    return lines, FAILED if is_failure else DONE


NO_DRIVER = "no NVIDIA driver found"


def is_excused(engine, failure, device):
    """Whether a failure is expected: the engine or its preset is not for this device, the engine lacks its Python library or the
    driver that the library needs, or (in a rehearsal) the program is not packed."""
    manifest_text = manifest(engine["name"])
    # A missing driver is a fault of this machine, not a refusal by the engine.
    is_refused = failure["kind"] in ("unsupported", "unavailable") and failure["message"] != NO_DRIVER
    if manifest_text and is_refused and not supports_device(manifest_text, device):
        return True
    if failure["kind"] == "unsupported":
        # The manifest supports the device, so only a preset can be for another one.
        return f"{engine['name']}:" in engine["label"]
    if failure["kind"] != "unavailable":
        return False
    if re.search(r"^\[environment\]", manifest_text, re.M) and not re.search(r"^reference *= *true", manifest_text, re.M):
        # Only the verifier must run: the libraries of the other engines are optional on this machine.
        return True
    # A rehearsal: the program for the processor is not packed.
    return device == "cpu" and failure["message"] == "not built"


def supports_device(manifest_text, device):
    """Whether a manifest lists this kind of device. One without a list may support any."""
    listed = re.search(r"^ *devices *= *\[(.*)\]", manifest_text, re.M)
    return not listed or f'"{device.split(":")[0]}"' in listed[1]


def manifest(engine):
    try:
        return (Path("engines") / engine / "engine.toml").read_text(encoding="utf-8")
    except OSError:
        return ""


def replace_hint(line, device, programs):
    match = SET_UP.search(line)
    if not match:
        return line
    binaries = re.findall(r'^binary *= *"(.*)"', manifest(match["engine"]), re.M)
    # A manifest names the program for the processor first, and the program for the GPU last.
    is_packed = binaries and (Path(programs) / binaries[-1 if match["device"] else 0]).exists()
    if is_packed:
        hint = "export ORCHESTRATE_PYTHON=/a/python/that/has/its/library"
    elif device == "cpu":
        hint = f"where there is Rust: cargo run --release -- setup {match['engine']}"
    else:
        hint = "where there is Rust: scripts/gpu-check --pack"
    return f"{line[: match.start()]}hint: {hint}\n"


def status(output):
    """The verification status with its values, and with the first reason if it is neither `exact` nor `agrees`."""
    scores, greedy = output["scores"], output["greedy"]
    values = ["the verifier itself"] if output["against"]["kind"] == "itself" else []
    if scores and scores["rms"] is not None:
        values.append(f"{scores['rms']:.2g} nats from f32 over {scores['tokens']} tokens")
    if greedy and greedy["compared"]:
        values.append(f"{greedy['equal']} of {greedy['compared']} greedy ids the same")
    if output["status"] not in ("exact", "agrees"):
        values += output["reasons"][:1]
    return output["status"] + (f" ({'; '.join(values)})" if values else "")


def gpus(detected, packed_for):
    if not detected:
        return ["  GPU: none found through the NVIDIA driver, or there is no driver"]
    lines = []
    for gpu in detected:
        capability = gpu.get("compute_capability")
        facts = [gpu.get("name"), f"compute capability {capability}" if capability else None]
        facts += [f"{name} {gpu[name]}" for name in ("driver", "cuda") if gpu.get(name)]
        lines.append("  GPU: " + ", ".join(fact for fact in facts if fact))
        digits = (capability or "").replace(".", "")
        # The suffix does not count here: `90a` is for compute capability 9.0.
        if digits and packed_for and digits != packed_for.rstrip("af"):
            lines.append(f"  warning: the programs were built for compute capability {packed_for}, and this GPU has {digits}")
            lines.append(f"  hint: CUDA_COMPUTE_CAP={digits} scripts/gpu-check --pack")
    return lines


if __name__ == "__main__":
    main()
