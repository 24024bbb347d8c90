"""Tests CUDA's numbering of GPUs, with the table of the orchestrator's own test, and the watched processes."""

import os
import subprocess
import sys
import unittest
from types import SimpleNamespace
from unittest import mock

from support import ENGINE

import machine
import visible
from visible import BY_SLOT


def gpu(uuid, pci, *parts):
    return SimpleNamespace(uuid=uuid, pci=pci, mig_uuids=list(parts))


# The driver counts the last slot first here.
GPUS = [gpu("GPU-aa31", "c1"), gpu("GPU-ab32", "1b"), gpu("GPU-bb33", "43")]


class Visible(unittest.TestCase):
    def places(self, allowed, order=BY_SLOT, gpus=GPUS):
        """The driver's numbers of the GPUs that CUDA shows; None for unknown ones."""
        shown = visible.visible(allowed, order, gpus)
        return [None if it.gpu is None else gpus.index(it.gpu) for it in shown]

    def test_cuda_counts_by_slot_on_request_and_else_the_order_is_unknown(self):
        self.assertEqual(self.places(None), [1, 2, 0])
        self.assertEqual(self.places(None, "FASTEST_FIRST"), [None] * 3)
        self.assertEqual(self.places("1", "FASTEST_FIRST"), [None])
        self.assertEqual(self.places(None, "FASTEST_FIRST", GPUS[2:]), [0])
        self.assertEqual(self.places(None, gpus=[]), [])
        self.assertEqual(self.places(None, gpus=[gpu(it.uuid, None) for it in GPUS]), [0, 1, 2])

    def test_a_list_of_numbers_renumbers_and_ends_where_one_is_invalid(self):
        for allowed, expected in {
            "2,0": [0, 1],
            " 1 , 2": [2, 0],
            "0,2,-1,1": [1, 0],
            "0,3,1": [1],
            "1gpu,2nd": [2, 0],
            "0,": [1],
            "": [],
            "-1": [],
            "none": [],
            "99999999999999999999": [],
            "0,1,0": [],
            "0,GPU-bb33": [1],
        }.items():
            self.assertEqual(self.places(allowed), expected, allowed)
        self.assertEqual(self.places("0,0", "FASTEST_FIRST"), [])

    def test_an_identity_names_one_gpu_in_any_order(self):
        for allowed, expected in {
            "GPU-bb33,GPU-aa31": [2, 0],
            "GPU-b,GPU-ab": [2, 1],
            "GPU-a": [],
            "GPU-bb33,GPU-x,GPU-ab32": [2],
            "GPU-bb33,0": [2],
            "GPU-b,GPU-bb33": [],
        }.items():
            for order in (BY_SLOT, "FASTEST_FIRST"):
                self.assertEqual(self.places(allowed, order), expected, allowed)

    def test_a_mig_part_means_its_gpu_and_only_the_first_of_several_is_visible(self):
        cut = [GPUS[0], gpu("GPU-ab32", "1b", "MIG-0a", "MIG-1b"), GPUS[2]]
        self.assertEqual(self.places("MIG-1b,MIG-0a", gpus=cut), [1])
        self.assertEqual(self.places("MIG-GPU-ab32/1/0", gpus=cut), [1])
        self.assertEqual(self.places("MIG-7", gpus=cut), [])
        self.assertEqual(self.places(None, gpus=cut), [None] * 3)
        self.assertEqual(self.places(None, gpus=cut[1:2]), [0])


@unittest.skipUnless(sys.platform == "linux", "processes are looked up in /proc")
class Watching(unittest.TestCase):
    def sleeper(self, opens):
        script = f"import sys\nfile = open({str(opens)!r})\nprint(flush=True)\nsys.stdin.read()"
        process = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.addCleanup(process.communicate)
        process.stdout.readline()
        return process.pid

    def test_in_a_container_processes_with_an_open_gpu_are_watched_or_else_all(self):
        before = machine.processes()
        helper, worker = self.sleeper(os.devnull), self.sleeper(ENGINE / "worker.py")
        with mock.patch.object(machine, "_computing", lambda: [(helper + 10_000_000, 1)]):
            with mock.patch.object(machine, "DEVICE_FILES", str(ENGINE / "worker.p")):
                self.assertEqual(machine.workers_since(before).watched, {worker})
            with mock.patch.object(machine, "DEVICE_FILES", "/no/such"):
                self.assertEqual(machine.workers_since(before).watched, {helper, worker})
        with mock.patch.object(machine, "_computing", lambda: [(helper, 1)]):
            self.assertEqual(machine.workers_since(before).watched, {helper})


if __name__ == "__main__":
    unittest.main()
