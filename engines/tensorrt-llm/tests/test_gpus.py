"""Tests which GPUs a list in `CUDA_VISIBLE_DEVICES` shows, and their order. The orchestrator's test has the same lists
(`src/machine/gpu/cuda.rs`)."""

import unittest
from types import SimpleNamespace

import support  # noqa: F401 (adds the engine's folder to the path)

import gpus
from gpus import BY_SLOT


def gpu(uuid, pci, *mig_uuids):
    return SimpleNamespace(uuid=uuid, pci=pci, mig_uuids=list(mig_uuids))


# These GPUs are in the driver's order, which is not the order of their slots.
GPUS = [gpu("GPU-aa31", "c1"), gpu("GPU-ab32", "1b"), gpu("GPU-bb33", "43")]


class VisibleDevices(unittest.TestCase):
    def indices(self, visible_list, order=BY_SLOT, all_gpus=GPUS):
        """The indices in `all_gpus` of the GPUs that CUDA shows; None where only CUDA knows which GPU it shows."""
        devices = gpus.visible_devices(visible_list, order, all_gpus)
        return [None if device.gpu is None else all_gpus.index(device.gpu) for device in devices]

    def test_the_order_of_several_gpus_is_known_only_if_cuda_counts_by_slot(self):
        self.assertEqual(self.indices(None), [1, 2, 0])
        self.assertEqual(self.indices(None, "FASTEST_FIRST"), [None] * 3)
        self.assertEqual(self.indices("1", "FASTEST_FIRST"), [None])
        self.assertEqual(self.indices(None, "FASTEST_FIRST", GPUS[2:]), [0])
        self.assertEqual(self.indices(None, all_gpus=[]), [])
        # If the driver does not report the slots, its own order is used.
        self.assertEqual(self.indices(None, all_gpus=[gpu(it.uuid, None) for it in GPUS]), [0, 1, 2])

    def test_a_list_of_numbers_counts_by_slot(self):
        for visible_list, expected in {
            "2,0": [0, 1],
            " 1 , 2": [2, 0],
            # The list ends at the first number without a GPU.
            "0,2,-1,1": [1, 0],
            "0,3,1": [1],
            "1gpu,2nd": [2, 0],  # Text after a number is ignored.
            "0,": [1],
            "": [],
            "-1": [],
            "none": [],
            "99999999999999999999": [],
            "0,1,0": [],  # A list with a duplicate shows no GPU.
            "0,GPU-bb33": [1],
        }.items():
            self.assertEqual(self.indices(visible_list), expected, visible_list)
        self.assertEqual(self.indices("0,0", "FASTEST_FIRST"), [])

    def test_a_uuid_names_the_same_gpu_in_both_orders(self):
        for visible_list, expected in {
            "GPU-bb33,GPU-aa31": [2, 0],
            "GPU-b,GPU-ab": [2, 1],
            "GPU-a": [],  # Two UUIDs begin with this.
            "GPU-bb33,GPU-x,GPU-ab32": [2],
            "GPU-bb33,0": [2],
            "GPU-b,GPU-bb33": [],
        }.items():
            for order in (BY_SLOT, "FASTEST_FIRST"):
                self.assertEqual(self.indices(visible_list, order), expected, visible_list)

    def test_a_mig_device_stands_for_its_gpu_and_only_the_first_in_a_list_is_visible(self):
        partitioned = [GPUS[0], gpu("GPU-ab32", "1b", "MIG-0a", "MIG-1b"), GPUS[2]]
        self.assertEqual(self.indices("MIG-1b,MIG-0a", all_gpus=partitioned), [1])
        self.assertEqual(self.indices("MIG-GPU-ab32/1/0", all_gpus=partitioned), [1])
        self.assertEqual(self.indices("MIG-7", all_gpus=partitioned), [])
        # Without a list, only CUDA knows whether it shows whole GPUs or MIG devices.
        self.assertEqual(self.indices(None, all_gpus=partitioned), [None] * 3)
        self.assertEqual(self.indices(None, all_gpus=partitioned[1:2]), [0])


if __name__ == "__main__":
    unittest.main()
