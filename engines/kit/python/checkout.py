"""The places of a checkout, and engines that are started from it, for tests and scripts. No worker gets this module."""

import json
import os
import subprocess
import sys
from pathlib import Path

KIT = Path(__file__).resolve().parent
ENGINES = KIT.parents[1]
ROOT = ENGINES.parent
EMBEDDED = ROOT / "models" / "embedded"

# The programs of a release build.
RELEASE = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target") / "release"

# The data folder of the user, with the environments of the engines.
USER_HOME = Path(
    os.environ.get("ORCHESTRATE_HOME")
    or Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "orchestrate"
)


def use_program(name):
    """Makes this program run the conversions of a worker, unless the environment names another one."""
    os.environ.setdefault("ORCHESTRATE_ENGINE_PROGRAM", str(RELEASE / name))


def require_program(name):
    """The path of a program of the release build. Ends the script if it is not built."""
    path = RELEASE / name
    if not path.is_file():
        sys.exit(f"error: no program `{path}`\nhint: cargo build --release")
    return path


def python_of(engine):
    """The Python of an engine's environment; None with the reason if it is not set up."""
    command = [ROOT / "scripts" / "python-of", engine, "-c", "import sys; print(sys.executable)"]
    # Tests have a data folder of their own. The environments are in the user's.
    done = subprocess.run(command, env={**os.environ, "ORCHESTRATE_HOME": str(USER_HOME)}, capture_output=True, text=True)
    return (done.stdout.strip(), None) if done.returncode == 0 else (None, done.stderr.splitlines()[0])


def worker_command(engine, python=sys.executable):
    """The command of an engine's worker, in an interpreter with its packages, and the environment of the process."""
    return [str(python), "-s", str(ENGINES / engine / "worker.py")], {**os.environ, "PYTHONPATH": str(KIT)}


class EngineProcess:
    """An engine that answers one request at a time. A failed request ends the script with the engine's message."""

    def __init__(self, command, environment=None):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen([str(part) for part in command], env=environment, text=True, **pipes)

    def request(self, **request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            answer = json.loads(line)
            if answer["type"] == "failed":
                raise SystemExit(f"error: the engine: {answer['message']}")
            if answer["type"] != "progress":
                return answer
        raise SystemExit(f"error: the engine ended with {self.process.wait()}")

    def generate(self, prompt, new_tokens):
        """The only iteration of a greedy request."""
        request = {"type": "generate", "prompt_ids": prompt, "max_new_tokens": new_tokens, "ignore_eos": True}
        (iteration,) = self.request(**request)["iterations"]
        return iteration

    def end(self):
        self.process.stdin.close()
        return self.process.wait()
