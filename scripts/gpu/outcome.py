"""What scripts/gpu-check reads in reports (`orchestrate report --format json`, on stdin) and says in a sentence.

    outcome.py --has-measured           whether anything was
    outcome.py NAME DEVICE RECORD       a line for each engine of this run, and one for its record
    outcome.py --gpus CAPABILITY        of `orchestrate machine --format json`: the GPUs, and whether programs fit them

Runs on the GPU machine: Python 3.8 and its standard library.
"""

import json
import sys


def main():
    try:
        document = json.load(sys.stdin)
    except ValueError:
        sys.exit("  nothing can be read of it")
    if sys.argv[1] == "--has-measured":
        sys.exit(0 if any(case["samples"] for case in document["cases"]) else 1)
    if sys.argv[1] == "--gpus":
        lines = gpus(document["machine"].get("gpus", []), sys.argv[2])
    else:
        lines = outcome(document, *sys.argv[2:])
        lines.insert(0, f"on {sys.argv[1]}:")
    print("\n".join(lines))


def outcome(report, device, record):
    standings = {output["engine"]: output for output in report["outputs"]}
    measured = {case["engine"]["label"] for case in report["cases"] if case["samples"]}
    faults = {case["engine"]["label"]: case["failure"] for case in report["cases"] if case["failure"]}
    faults.update((failed["engine"]["label"], failed["failure"]) for failed in report["failed"])
    lines = []
    for engine in sorted(measured | set(faults)):
        fault, output = faults.get(engine), standings.get(engine)
        words = []
        if engine in measured:
            words.append(standing(output) if output else "unverified")
        if fault:
            part = "a part of it failed" if engine in measured else "not measured"
            words.append(f"{part}: {fault['message']}")
        lines.append(f"  {engine}: {'; '.join(words)}")
    if not measured:
        lines.append(f"  nothing was measured: no engine could run on `{device}` here")
    lines.append(f"  record: {record}")
    return lines


def standing(output):
    """The standing, with the figures or the reason for it."""
    scores, greedy = output["scores"], output["greedy"]
    figures = ["the witness itself"] if output["against"]["whom"] == "itself" else []
    if scores and scores["rms"] is not None:
        figures.append(f"{scores['rms']:.2g} nats from f32 over {scores['tokens']} tokens")
    if greedy and greedy["compared"]:
        figures.append(f"{greedy['equal']} of {greedy['compared']} greedy ids the same")
    if output["standing"] not in ("exact", "agrees"):
        figures += output["reasons"][:1]
    return output["standing"] + (f" ({'; '.join(figures)})" if figures else "")


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
        if digits and packed_for and digits != packed_for:
            lines.append(f"  warning: the programs were built for {packed_for}, and this one is {digits}")
            lines.append(f"  hint: CUDA_COMPUTE_CAP={digits} scripts/gpu-check --pack")
    return lines


if __name__ == "__main__":
    main()
