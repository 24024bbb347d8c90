"""What scripts/gpu-check reads in reports (`orchestrate report --format json`, on stdin) and says in a sentence.

    outcome.py --has-measured                  whether anything was
    outcome.py --judge NAME DEVICE RECORD CODE a line for each engine of this run, and one for its record; exits with 4 where
                                               something is wrong, failed or was not measured. CODE is what the run exited with
    outcome.py --gpus CAPABILITY               of `orchestrate machine --format json`: the GPUs, and whether programs fit them
    outcome.py --hints DEVICE PROGRAMS         of a table: hints that cannot be followed where nothing can be built become others

Runs on the GPU machine, in the checkout: Python 3.8 and its standard library.
"""

import json
import re
import sys
from pathlib import Path

DONE, FAILED = 0, 4
SET_UP = re.compile(r"hint: orchestrate setup (?P<engine>\S+)(?P<device> --device \S+)?$")


def main():
    what, arguments = sys.argv[1], sys.argv[2:]
    if what == "--hints":
        sys.stdout.writelines(followable(line, *arguments) for line in sys.stdin)
        return
    try:
        document = json.load(sys.stdin)
    except ValueError:
        sys.exit("  nothing can be read of it")
    if what == "--has-measured":
        sys.exit(0 if any(case["samples"] for case in document["cases"]) else 1)
    if what == "--gpus":
        print("\n".join(gpus(document["machine"].get("gpus", []), *arguments)))
        return
    name, device, record, code = arguments
    lines, code = outcome(document, device, record, int(code))
    print("\n".join([f"on {name}:", *lines]))
    sys.exit(code)


def outcome(report, device, record, code=DONE):
    """The lines, and the exit code. The run's own says nothing of engines that could not be started, which `--all` excuses,
    and does not excuse a preset that is for another device; so that is judged here, and the rest of it is the run's."""
    standings = {output["engine"]: output for output in report["outputs"]}
    measured = {case["engine"]["label"] for case in report["cases"] if case["samples"]}
    faulty = [(case["engine"], case["failure"]) for case in report["cases"] if case["failure"]]
    faulty += [(failed["engine"], failed["failure"]) for failed in report["failed"]]
    faults = {engine["label"]: (engine, fault) for engine, fault in faulty}
    lines, failed, excused = [], not measured, False
    for label in sorted(measured | set(faults)):
        engine, fault = faults.get(label, (None, None))
        output = standings.get(label)
        words = []
        if label in measured:
            words.append(status(output) if output else "unverified")
            failed = failed or (output or {}).get("status") == "wrong"
        if fault and label not in measured and is_excused(engine, fault, device):
            words.append(f"left out: {fault['message']}")
            excused = True
        elif fault:
            part = "a part of it failed" if label in measured else "not measured"
            words.append(f"{part}: {fault['message']}")
            failed = True
        lines.append(f"  {label}: {'; '.join(words)}")
    if not measured:
        lines.append(f"  nothing was measured: no engine could run on `{device}` here")
    if code == FAILED and not failed and not excused:
        failed = True
        lines.append("  something else failed: the record has it")
    lines.append(f"  record: {record}")
    return lines, FAILED if failed else DONE


NO_DRIVER = "no NVIDIA driver found"


def is_excused(engine, fault, device):
    """What nobody could have carried here, or what is not asked of this device."""
    about = manifest(engine["name"])
    # A machine without a driver is every engine's trouble.
    asked = fault["kind"] in ("unsupported", "unavailable") and fault["message"] != NO_DRIVER
    if about and asked and not serves(about, device):
        return True
    if fault["kind"] == "unsupported":
        # The engine as it comes is asked on its own account.
        return f"{engine['name']}:" in engine["label"]
    if fault["kind"] != "unavailable":
        return False
    if re.search(r"^\[environment\]", about, re.M) and not re.search(r"^reference *= *true", about, re.M):
        # A library in Python that this machine lacks.
        return True
    # A rehearsal: the program for the processor is not packed.
    return device == "cpu" and fault["message"] == "not built"


def serves(about, device):
    """Whether a manifest speaks of this kind of device; every engine is for processors, but for one that needs a driver."""
    family = device.split(":")[0]
    return family == "cpu" or bool(re.search(rf"^\[devices\.{re.escape(family)}\b|^driver *=", about, re.M))


def manifest(engine):
    try:
        return (Path("engines") / engine / "engine.toml").read_text(encoding="utf-8")
    except OSError:
        return ""


def followable(line, device, programs):
    found = SET_UP.search(line)
    if not found:
        return line
    binaries = re.findall(r'^binary *= *"(.*)"', manifest(found["engine"]), re.M)
    # For a device of its own it is the last one that is named.
    there = binaries and (Path(programs) / binaries[-1 if found["device"] else 0]).exists()
    if there:
        instead = "export ORCHESTRATE_PYTHON=/a/python/that/has/its/library"
    elif device == "cpu":
        instead = f"where there is Rust: cargo run --release -- setup {found['engine']}"
    else:
        instead = "where there is Rust: scripts/gpu-check --pack"
    return f"{line[: found.start()]}hint: {instead}\n"


def status(output):
    """The status, with the figures or the reason for it."""
    scores, greedy = output["scores"], output["greedy"]
    figures = ["the verifier itself"] if output["against"]["kind"] == "itself" else []
    if scores and scores["rms"] is not None:
        figures.append(f"{scores['rms']:.2g} nats from f32 over {scores['tokens']} tokens")
    if greedy and greedy["compared"]:
        figures.append(f"{greedy['equal']} of {greedy['compared']} greedy ids the same")
    if output["status"] not in ("exact", "agrees"):
        figures += output["reasons"][:1]
    return output["status"] + (f" ({'; '.join(figures)})" if figures else "")


def gpus(found, packed_for):
    if not found:
        return ["  GPU: the NVIDIA driver knows none"]
    lines = []
    for gpu in found:
        capability = gpu.get("compute_capability")
        facts = [gpu.get("name"), f"compute capability {capability}" if capability else None]
        facts += [f"{name} {gpu[name]}" for name in ("driver", "cuda") if gpu.get(name)]
        lines.append("  GPU: " + ", ".join(fact for fact in facts if fact))
        digits = (capability or "").replace(".", "")
        # `90a` is for 90 as well.
        if digits and packed_for and digits != packed_for.rstrip("af"):
            lines.append(f"  warning: the programs were built for {packed_for}, and this one is {digits}")
            lines.append(f"  hint: CUDA_COMPUTE_CAP={digits} scripts/gpu-check --pack")
    return lines


if __name__ == "__main__":
    main()
