"""The programs that scripts compare: `orchestrate`, engines, and llama.cpp through its bindings."""

import json
import subprocess
import sys
from pathlib import Path


class Failed(Exception):
    """A program refused a request or ended."""


class Orchestrate:
    def __init__(self, program: Path):
        self.program = program

    def __call__(self, *arguments) -> None:
        command = [str(self.program), *map(str, arguments)]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode != 0:
            raise Failed(f"`{' '.join(command)}`\n{done.stderr.strip()}")


class Conversation:
    """A program that gets and gives messages as lines of JSON. Its stderr goes to `log`; a failure quotes the end of the log."""

    def __init__(self, command: list, log: Path):
        self.command, self.log, self.process = command, log, None

    def send(self, message: dict) -> None:
        if self.process is None:
            with open(self.log, "ab") as log:
                self.process = subprocess.Popen(
                    [str(part) for part in self.command],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, encoding="utf-8",
                )
        try:
            self.process.stdin.write(json.dumps(message) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise self.failure_at_end() from None

    def receive(self) -> dict:
        line = self.process.stdout.readline()
        if line:
            return json.loads(line)
        raise self.failure_at_end()

    def failure_at_end(self) -> Failed:
        """The failure of a program that ended. The next message starts the program again."""
        status, self.process = self.process.wait(), None
        return Failed(f"`{self.command[-1]}` ended with status {status}\n{self.last_lines()}")

    def last_lines(self) -> str:
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(line for line in lines[-8:] if line.strip())

    def end(self) -> None:
        if self.process is not None:
            self.process.stdin.close()
            self.process.wait()


class ProtocolEngine(Conversation):
    """An engine of this project, which speaks the protocol. `scores` and `greedy` load a folder in f32."""

    def request(self, message: dict) -> dict:
        self.send(message)
        while (answer := self.receive())["type"] == "progress":
            pass
        if answer["type"] == "failed":
            hint = f"\nhint: {answer['hint']}" if answer.get("hint") else ""
            raise Failed(f"{self.command[0].name}: {answer['message']}{hint}")
        return answer

    def load(self, folder: Path) -> None:
        # One thread, as for llama.cpp: the models are small, and threads that wait for each other are slow on a busy machine.
        self.request({"type": "load", "model": str(folder), "dtype": "f32", "device": "cpu", "threads": 1})

    def scores(self, folder: Path, sequences: list[list[int]]) -> list[list[float]]:
        self.load(folder)
        return self.request({"type": "score", "sequences": sequences})["logprobs"]

    def greedy(self, folder: Path, prompt: list[int], count: int) -> list[int]:
        self.load(folder)
        answer = self.request({
            "type": "generate", "prompt_ids": prompt, "max_new_tokens": count, "ignore_eos": True, "iterations": 1,
        })
        return answer["iterations"][0]["sequences"][0]["output_ids"]


class LlamaCpp(Conversation):
    def __init__(self, log: Path):
        super().__init__([sys.executable, Path(__file__).with_name("llama_cpp_program.py")], log)

    def request(self, file: Path, **fields) -> dict:
        self.send({"model": str(file), **fields})
        answer = self.receive()
        if "failed" in answer:
            raise Failed(f"llama.cpp: {answer['failed']}\n{self.last_lines()}")
        return answer
