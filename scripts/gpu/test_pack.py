"""Tests that `pack.py` packs the programs that the manifests name, leaves out those that cannot be built, and limits the size."""

import contextlib
import io
import lzma
import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import pack

MANIFESTS = {
    "verifier": 'binary = "verifier-engine"\nreference = true\n[build]\npackage = "verifier"\n',
    "two-programs": 'binary = "two-cpu"\n[build]\npackage = "two"\n[devices.cuda]\nbinary = "two-cuda"\n'
    '[devices.cuda.build]\ncommand = ["./build-two"]\n',
    "one-program": 'binary = "one-engine"\n[build]\npackage = "one"\nfeatures = ["fast"]\n[devices.cuda.needs]\ndriver = "nvidia"\n',
    "gpu-alone": 'binary = "gpu-engine"\n[build]\npackage = "gpu"\n[needs]\ndriver = "nvidia"\n',
    "cpu-alone": 'binary = "cpu-engine"\n[build]\npackage = "cpu"\n',
}
# Replaces cargo: records its arguments, and makes the program's file.
CARGO = """#!/bin/sh
echo "$*" "$RUSTFLAGS" >>"$CALLS"
for word in "$@"; do case $before in -p) package=$word ;; esac; before=$word; done
[ "$package" != gpu ] || exit 1
name=$package-engine
[ "$package" != orchestrate ] || name=orchestrate
mkdir -p "$CARGO_TARGET_DIR/release" && echo "$name" >"$CARGO_TARGET_DIR/release/$name"
"""
BUILD_TWO = """#!/bin/sh
echo "cuda for $CUDA_COMPUTE_CAP" >"$CARGO_TARGET_DIR/release/two-cuda"
"""


class Packing(unittest.TestCase):
    def setUp(self):
        self.root = Path(self.enterContext(tempfile.TemporaryDirectory()))
        for name, manifest in MANIFESTS.items():
            (self.root / "engines" / name).mkdir(parents=True)
            (self.root / "engines" / name / "engine.toml").write_text(manifest)
        for path, script in {"bin/cargo": CARGO, "build-two": BUILD_TWO}.items():
            (self.root / path).parent.mkdir(exist_ok=True)
            (self.root / path).write_text(script)
            (self.root / path).chmod(0o755)
        environment = {
            "PATH": f"{self.root / 'bin'}:{os.environ['PATH']}",
            "CALLS": str(self.root / "calls"),
        }
        self.enterContext(mock.patch.dict(os.environ, environment))
        self.enterContext(mock.patch.dict(pack.ENVIRONMENT, CARGO_TARGET_DIR=str(self.root / "target/gpu-check")))
        self.enterContext(mock.patch.object(pack, "ROOT", self.root))

    def pack(self):
        """Packs all programs. Returns the exit status, and the output."""
        output = io.StringIO()
        command = ["pack.py", str(self.root / "packed")]
        with mock.patch("sys.argv", command), contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            with self.assertRaises(SystemExit) as ended:
                pack.main()
        return ended.exception.code, output.getvalue()

    def test_the_programs_for_a_gpu_and_that_of_the_verifier_are_packed(self):
        names = [program.name for program in pack.programs()]
        self.assertEqual(names, ["orchestrate", "gpu-engine", "one-engine", "two-cuda", "verifier-engine"])

    def test_each_program_is_built_as_its_manifest_says_for_a_common_processor(self):
        status, output = self.pack()
        calls = (self.root / "calls").read_text().splitlines()
        self.assertIn("build --release --locked -p one --features fast -C target-cpu=x86-64-v3", calls)
        packed = lzma.open(self.root / "packed/two-cuda.xz").read()
        self.assertEqual(packed, f"cuda for {pack.ENVIRONMENT['CUDA_COMPUTE_CAP']}\n".encode())
        # A program that cannot be built is reported, and the others are packed.
        self.assertEqual(status, 4)
        self.assertRegex(output, "warning: `gpu-engine` is not packed: `cargo build .* -p gpu` failed")
        self.assertIn(f"compute-capability {pack.ENVIRONMENT['CUDA_COMPUTE_CAP']}\n", (self.root / "packed/manifest").read_text())
        programs = [line.split()[1] for line in (self.root / "packed/manifest").read_text().splitlines() if "program" in line]
        self.assertEqual(programs, ["orchestrate", "one-engine", "two-cuda", "verifier-engine"])

    def test_the_refusal_of_too_many_bytes_names_the_largest_program_and_keeps_the_old_folder(self):
        self.pack()
        before = (self.root / "packed/manifest").read_text()
        with mock.patch.object(pack, "MAX_BYTES", 100):
            status, _ = self.pack()
        self.assertRegex(status, "more than the limit of .*: `.*` is the largest")
        self.assertEqual((self.root / "packed/manifest").read_text(), before)
        self.assertFalse((self.root / "packed.new").exists())

    def test_the_manifest_has_the_compute_capability_and_libc_of_earlier_builds(self):
        built = self.root / "built"
        built.mkdir()
        for program in pack.programs():
            (built / program.name).write_bytes(b"GLIBC_2.9 GLIBC_2.34\0GLIBC_PRIVATE")
        (built / "two-cuda.capability").write_text("86\n")
        lines = self.pack_all_lines(built)
        self.assertIn("compute-capability 86", lines)
        self.assertIn("glibc 2.34", lines)
        (built / "two-cuda.capability").unlink()
        self.assertNotIn("compute-capability", "".join(self.pack_all_lines(built)))

    def pack_all_lines(self, source):
        packed = self.root / "packed"
        packed.mkdir(exist_ok=True)
        with contextlib.redirect_stdout(io.StringIO()):
            self.assertEqual(pack.pack_all(packed, source), 0)
        return (packed / "manifest").read_text().splitlines()

    @unittest.skipUnless(shutil.which("cc") and shutil.which("readelf"), "needs a C compiler and binutils")
    def test_a_packed_program_has_no_run_path_and_still_runs(self):
        (self.root / "one.c").write_text("int main(void) { return 7; }")
        folder = "/home/somebody/toolkits/cuda/lib"
        program = self.root / "one"
        link = f"-Wl,--enable-new-dtags,-rpath,{folder}"
        subprocess.run(["cc", "-o", program, self.root / "one.c", link], check=True)
        self.assertIn(folder.encode(), program.read_bytes())
        (self.root / "carried").mkdir()
        _, _, content = pack.pack(program, "one", self.root / "carried")
        self.assertNotIn(folder.encode(), content)
        program.write_bytes(content)
        self.assertEqual(subprocess.run([program], check=False).returncode, 7)

    def test_python_compresses_if_xz_is_missing(self):
        with mock.patch("shutil.which", lambda _: None):
            self.assertEqual(lzma.decompress(pack.compress(b"one two")), b"one two")


if __name__ == "__main__":
    unittest.main()
