"""The programs that take part: `orchestrate`, the reference engine, and llama.cpp behind its bindings."""

import json
import subprocess
import sys
from pathlib import Path


class Failed(Exception):
    """Somebody said no, or ended. Its text is for a person."""


class Orchestrate:
    def __init__(self, program: Path):
        self.program = program

    def __call__(self, *arguments) -> None:
        command = [str(self.program), *map(str, arguments)]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode != 0:
            raise Failed(f"`{' '.join(command)}`\n{done.stderr.strip()}")


class Conversation:
    """A line in, a line out. The program's stderr goes to `log`, and its end is shown when it fails."""

    def __init__(self, command: list, log: Path):
        self.command, self.log, self.process = command, log, None

    def tell(self, message: dict) -> None:
        if self.process is None:
            with open(self.log, "ab") as log:
                self.process = subprocess.Popen(
                    [str(word) for word in self.command],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, encoding="utf-8",
                )
        try:
            self.process.stdin.write(json.dumps(message) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise self.ended() from None

    def hear(self) -> dict:
        line = self.process.stdout.readline()
        if line:
            return json.loads(line)
        raise self.ended()

    def ended(self) -> Failed:
        """The next message starts it again."""
        status, self.process = self.process.wait(), None
        return Failed(f"`{self.command[-1]}` ended with status {status}\n{self.last_words()}")

    def last_words(self) -> str:
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(line for line in lines[-8:] if line.strip())

    def end(self) -> None:
        if self.process is not None:
            self.process.stdin.close()
            self.process.wait()


class Reference(Conversation):
    """An engine of this project, over its protocol: f32 throughout, from safetensors."""

    def ask(self, message: dict) -> dict:
        self.tell(message)
        while (told := self.hear())["type"] == "progress":
            pass
        if told["type"] == "failed":
            hint = f"\nhint: {told['hint']}" if told.get("hint") else ""
            raise Failed(f"{self.command[0].name}: {told['message']}{hint}")
        return told

    def load(self, folder: Path) -> None:
        # One thread on both sides: the models are small, and threads that wait for each other by spinning are slow on a
        # machine that has other work.
        self.ask({"type": "load", "model": str(folder), "dtype": "f32", "device": "cpu", "threads": 1})

    def scores(self, folder: Path, sequences: list[list[int]]) -> list[list[float]]:
        self.load(folder)
        return self.ask({"type": "score", "sequences": sequences})["logprobs"]

    def greedy(self, folder: Path, prompt: list[int], count: int) -> list[int]:
        self.load(folder)
        told = self.ask({
            "type": "generate", "prompt_ids": prompt, "max_new_tokens": count, "ignore_eos": True, "iterations": 1,
        })
        return told["iterations"][0]["sequences"][0]["output_ids"]


class LlamaCpp(Conversation):
    def __init__(self, log: Path):
        super().__init__([sys.executable, Path(__file__).with_name("opened.py")], log)

    def ask(self, file: Path, **question) -> dict:
        self.tell({"model": str(file), **question})
        told = self.hear()
        if "failed" in told:
            raise Failed(f"llama.cpp: {told['failed']}\n{self.last_words()}")
        return told
