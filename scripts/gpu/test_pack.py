"""What is packed: by manifests alone, no larger than can be carried, and whatever could be built."""

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
    "vouching": 'binary = "vouching-engine"\nreference = true\n[build]\npackage = "vouching"\n',
    "two-programs": 'binary = "two-cpu"\n[build]\npackage = "two"\n[devices.cuda]\nbinary = "two-cuda"\n'
    '[devices.cuda.build]\ncommand = ["./build-two"]\n',
    "one-program": 'binary = "one-engine"\n[build]\npackage = "one"\nfeatures = ["fast"]\n[devices.cuda.needs]\ndriver = "nvidia"\n',
    "gpu-alone": 'binary = "gpu-engine"\n[build]\npackage = "gpu"\n[needs]\ndriver = "nvidia"\n',
    "cpu-alone": 'binary = "cpu-engine"\n[build]\npackage = "cpu"\n',
}
# Takes cargo's place: says what it was asked, and leaves a file where cargo would.
CARGO = """#!/bin/sh
echo "$*" "$RUSTFLAGS" >>"$ASKED"
for word in "$@"; do case $before in -p) package=$word ;; esac; before=$word; done
[ "$package" != gpu ] || exit 1
name=$package-engine
[ "$package" != orchestrate ] || name=orchestrate
mkdir -p "$CARGO_TARGET_DIR/release" && echo "$name" >"$CARGO_TARGET_DIR/release/$name"
"""
COMMAND = """#!/bin/sh
echo "cuda for $CUDA_COMPUTE_CAP" >"$CARGO_TARGET_DIR/release/two-cuda"
"""


class Packing(unittest.TestCase):
    def setUp(self):
        self.root = Path(self.enterContext(tempfile.TemporaryDirectory()))
        for name, manifest in MANIFESTS.items():
            (self.root / "engines" / name).mkdir(parents=True)
            (self.root / "engines" / name / "engine.toml").write_text(manifest)
        for path, script in {"bin/cargo": CARGO, "build-two": COMMAND}.items():
            (self.root / path).parent.mkdir(exist_ok=True)
            (self.root / path).write_text(script)
            (self.root / path).chmod(0o755)
        environment = {
            "PATH": f"{self.root / 'bin'}:{os.environ['PATH']}",
            "ASKED": str(self.root / "asked"),
        }
        self.enterContext(mock.patch.dict(os.environ, environment))
        self.enterContext(mock.patch.dict(pack.ENVIRONMENT, CARGO_TARGET_DIR=str(self.root / "target/gpu-check")))
        self.enterContext(mock.patch.object(pack, "ROOT", self.root))

    def pack(self):
        """The exit status, and what was said."""
        said = io.StringIO()
        command = ["pack.py", str(self.root / "packed")]
        with mock.patch("sys.argv", command), contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            with self.assertRaises(SystemExit) as ended:
                pack.main()
        return ended.exception.code, said.getvalue()

    def test_the_programs_that_serve_a_gpu_are_packed_and_the_one_whose_word_is_taken(self):
        names = [program.name for program in pack.programs()]
        self.assertEqual(names, ["orchestrate", "gpu-engine", "one-engine", "two-cuda", "vouching-engine"])

    def test_each_is_built_as_its_manifest_says_for_a_processor_that_others_have_too(self):
        status, said = self.pack()
        asked = (self.root / "asked").read_text().splitlines()
        self.assertIn("build --release --locked -p one --features fast -C target-cpu=x86-64-v3", asked)
        packed = lzma.open(self.root / "packed/two-cuda.xz").read()
        self.assertEqual(packed, f"cuda for {pack.ENVIRONMENT['CUDA_COMPUTE_CAP']}\n".encode())
        # One that does not build keeps no other from being carried, and is not passed over in silence.
        self.assertEqual(status, 4)
        self.assertRegex(said, "warning: `gpu-engine` is not packed: `cargo build .* -p gpu` failed")
        self.assertIn(f"compute-capability {pack.ENVIRONMENT['CUDA_COMPUTE_CAP']}\n", (self.root / "packed/manifest").read_text())
        programs = [line.split()[1] for line in (self.root / "packed/manifest").read_text().splitlines() if "program" in line]
        self.assertEqual(programs, ["orchestrate", "one-engine", "two-cuda", "vouching-engine"])

    def test_what_cannot_be_carried_is_refused_with_what_is_largest_and_what_was_there_stays(self):
        self.pack()
        there = (self.root / "packed/manifest").read_text()
        with mock.patch.object(pack, "MOST_BYTES", 100):
            status, _ = self.pack()
        self.assertRegex(status, "more than the .* that can be carried: `.*` is the largest")
        self.assertEqual((self.root / "packed/manifest").read_text(), there)
        self.assertFalse((self.root / "packed.new").exists())

    def test_programs_that_were_built_before_say_what_gpu_they_are_for_and_what_libc_they_need(self):
        built = self.root / "built"
        built.mkdir()
        for program in pack.programs():
            (built / program.name).write_bytes(b"GLIBC_2.9 GLIBC_2.34\0GLIBC_PRIVATE")
        (built / "two-cuda.capability").write_text("86\n")
        lines = self.filled(built)
        self.assertIn("compute-capability 86", lines)
        self.assertIn("glibc 2.34", lines)
        (built / "two-cuda.capability").unlink()
        self.assertNotIn("compute-capability", "".join(self.filled(built)))

    def filled(self, source):
        packed = self.root / "packed"
        packed.mkdir(exist_ok=True)
        with contextlib.redirect_stdout(io.StringIO()):
            self.assertEqual(pack.fill(packed, source), 0)
        return (packed / "manifest").read_text().splitlines()

    @unittest.skipUnless(shutil.which("cc") and shutil.which("readelf"), "needs a C compiler and binutils")
    def test_the_folders_of_the_machine_that_built_it_are_not_carried_and_it_runs_without_them(self):
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

    def test_without_xz_python_packs_as_well(self):
        with mock.patch("shutil.which", lambda _: None):
            self.assertEqual(lzma.decompress(pack.compressed(b"one two")), b"one two")


if __name__ == "__main__":
    unittest.main()
