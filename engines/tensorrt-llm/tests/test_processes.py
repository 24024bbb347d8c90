"""Tests the worker processes of the library: their memory, their end, and the choice of those that are watched."""

import os
import subprocess
import sys
import time
import unittest
import uuid
from unittest import mock

from support import ENGINE, TIMEOUT_S, EngineProcess, loaded_engine, write_folder

import processes


class WorkerProcesses(unittest.TestCase):
    def test_memory_and_ids_of_worker_processes_are_reported(self):
        engine = EngineProcess(self, environment=launch_variable(), faults=["detached_worker"], gpus=[["A", [9, 0]]] * 2)
        message = engine.load(write_folder(self), options={"tp": 2})
        (record,) = engine.records("workers")
        self.assertEqual(message["pids"], sorted(record["workers"]))
        # In the stand-in each of the two worker processes uses 1 GiB.
        memory = {"in_use_bytes": 2 << 30, "peak_bytes": 2 << 30, "reserved_bytes": 2 << 30}
        self.assertEqual(message["device_memory"], memory)
        self.assertEqual(engine.generate(max_new_tokens=1)["device_memory"], memory)

    def test_the_ids_of_descendants_are_not_reported_because_the_orchestrator_finds_descendants(self):
        message = EngineProcess(self, environment=launch_variable()).load(write_folder(self))
        self.assertNotIn("pids", message)
        self.assertEqual(message["device_memory"]["in_use_bytes"], 1 << 30)

    def test_worker_processes_end_with_the_engine(self):
        for faults in (["detached_worker"], ["detached_worker", "does_not_shut_down"]):
            engine = loaded_engine(self, faults=faults, environment=launch_variable())
            (record,) = engine.records("workers")
            self.assertEqual(engine.request(type="shutdown"), {"type": "bye"})
            self.assertEqual(engine.process.wait(timeout=TIMEOUT_S), 0)
            self.assertEqual(engine.records("shut_down"), [{"shut_down": True}])
            for pid in record["workers"]:
                wait_for_end(self, pid)


@unittest.skipUnless(sys.platform == "linux", "the engine reads /proc")
class WatchedProcesses(unittest.TestCase):
    def start_process_with_open(self, file):
        script = f"import sys\nfile = open({str(file)!r})\nprint(flush=True)\nsys.stdin.read()"
        process = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.addCleanup(process.communicate)
        process.stdout.readline()
        return process.pid

    def test_watched_processes_are_those_of_the_driver_else_those_with_open_device_files_else_all(self):
        parents_before = processes.parents_by_pid()
        helper, worker = self.start_process_with_open(os.devnull), self.start_process_with_open(ENGINE / "worker.py")
        # In a container the driver has other process ids. `worker.py` stands for a device file, `worker.p` for its prefix.
        with mock.patch.object(processes, "_gpu_processes", lambda: [(helper + 10_000_000, 1)]):
            with mock.patch.object(processes, "DEVICE_FILES", str(ENGINE / "worker.p")):
                self.assertEqual(processes.library_processes_since(parents_before).watched, {worker})
            with mock.patch.object(processes, "DEVICE_FILES", "/no/such"):
                self.assertEqual(processes.library_processes_since(parents_before).watched, {helper, worker})
        with mock.patch.object(processes, "_gpu_processes", lambda: [(helper, 1)]):
            self.assertEqual(processes.library_processes_since(parents_before).watched, {helper})


def launch_variable():
    """The variable by which an engine finds its worker processes, with a new value. A run sets it for each launch."""
    return {"ORCHESTRATE_LAUNCH": uuid.uuid4().hex}


def wait_for_end(test, pid):
    deadline = time.monotonic() + TIMEOUT_S
    while processes.is_alive(pid):
        test.assertLess(time.monotonic(), deadline, f"process {pid} still runs")
        time.sleep(0.01)


if __name__ == "__main__":
    unittest.main()
