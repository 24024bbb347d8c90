//! Tests of scripts/gpu-check, from its packed programs to its table, in a tree of invented engines: as a rehearsal on the CPU,
//! without a GPU, and with a stand-in for the driver. They do not show that the script works on a GPU.

use std::path::Path;
use std::process::Command;

use crate::support::record::{Record, files};
use crate::support::{Outcome, Scratch, command, copy_program, driver, fake_engine, finish, quoted, root};

/// The reference engine, which uses the same program on CPU and GPU.
const REFERENCE: &str = r#"
    about = "verifies"
    binary = "steady-engine"
    reference = true
    [devices.cuda.needs]
    driver = "nvidia"
"#;
/// Makes `steady` the verifier. The embedded model's reference answers are from a real engine and do not fit invented ones.
const VERIFIER_OPTIONS: &[&str] = &["--", "--verifier", "steady"];
/// An engine with another program on a GPU.
const NEWCOMER: &str = r#"
    about = "has only a folder"
    binary = "newcomer-engine"
    [devices.cuda]
    binary = "newcomer-cuda"
    [devices.cuda.needs]
    driver = "nvidia"
"#;

/// An engine for GPUs only, whose program is not packed.
const FOR_GPUS: &str = r#"
    about = "for GPUs only"
    binary = "gpus-engine"
    [needs]
    driver = "nvidia"
    [load]
    devices = ["cuda"]
"#;

#[test]
fn a_rehearsal_turns_packed_programs_into_a_table_and_records() {
    let tree = Tree::with_packed_programs(&[]);
    tree.scratch.write_tree(&[("for-gpus", FOR_GPUS)]);
    let outcome = tree.check(&[&["--rehearse"], VERIFIER_OPTIONS].concat(), None).exits_with(0);
    // Programs for the CPU are packed only if they run on a GPU too.
    let manifest = std::fs::read_to_string(tree.scratch.join("gpu-check/manifest")).unwrap();
    let programs: Vec<&str> = manifest.lines().filter_map(|line| line.strip_prefix("program ")).collect();
    let names: Vec<&str> = programs.iter().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(names, ["orchestrate", "newcomer-cuda", "steady-engine"], "{manifest}");
    outcome.assert_stdout(&[
        "on embedded:\n  for-gpus: left out: no device `cpu`; it has `cuda`\n  newcomer: left out: not built\n  steady: exact (the verifier itself)\n",
        "on tiny-llama:\n  for-gpus: left out: no device `cpu`; it has `cuda`\n  newcomer: left out: not built\n  steady: exact (the verifier itself)\n",
        "model tiny-llama, ",
        "hint: where there is Rust: cargo run --release -- setup newcomer\n",
    ]);
    // One record for each model, and one of the verifier's answers for the second model. No record is in the checkout.
    let records = tree.records();
    let models: Vec<&str> = records.iter().map(model_of).collect();
    assert_eq!(models, ["embedded", "tiny-llama", "tiny-llama"]);
    assert!(!tree.scratch.join("results").exists());
    assert!(records.iter().all(|record| record.end() == Some("finished")), "{records:?}");
    let page = std::fs::read_to_string(tree.scratch.join("out/gpu-check.txt")).unwrap();
    assert_eq!(page, outcome.stdout);
}

#[test]
fn on_a_gpu_every_engine_is_compared_with_the_cpu_on_the_embedded_model() {
    let tree = Tree::with_programs(&[]);
    write_program_with_library(&tree.scratch, "built/newcomer-cuda");
    tree.pack("gpu-check").exits_with(0);
    let short = ["--shape", "tiny-llama", "--scenarios", "decode", "--blocks", "1"];
    let outcome = tree.check(&[&short, VERIFIER_OPTIONS].concat(), Some(&driver::present(&tree.scratch)));
    outcome.assert_stdout(&["GPU: Pretence 9000, compute capability 9.0"]);
    for expected in ["  newcomer: exact (", "  steady: exact ("] {
        assert_eq!(outcome.stdout.matches(expected).count(), 2, "{}", outcome.stdout);
    }
    let [small, _verifier, large] = &tree.records()[..] else { panic!("{outcome:?}") };
    for (record, verifier_device) in [(small, "cpu"), (large, "cuda")] {
        let configurations = &record.0[0]["plan"]["configurations"];
        let configuration = |label: &str| &configurations[record.configuration(label)];
        assert!(
            configuration("newcomer")["command"][0].as_str().unwrap().ends_with("newcomer-cuda"),
            "{configurations}"
        );
        assert_eq!(configuration("steady")["device"], "cuda");
        assert_eq!(configuration("steady (verifier)")["device"], verifier_device);
    }
}

#[test]
fn without_a_gpu_every_row_has_that_reason_and_no_large_model_is_made() {
    let tree = Tree::with_packed_programs(&[]);
    let outcome = tree.check(&[], None).exits_with(4);
    for engine in ["newcomer", "steady"] {
        let expected = format!("{engine}: unavailable: no NVIDIA driver found");
        outcome.assert_stdout(&[&expected]);
    }
    outcome.assert_stdout(&["no record: nothing was measured", "the larger model is not made"]);
    assert!(tree.records().is_empty());
}

#[test]
fn a_run_is_ended_at_the_time_limit_and_its_results_are_shown() {
    let tree = Tree::with_packed_programs(&["--fault", "hangs_in_generate", "--at", "12"]);
    // The run gets half of these 60 s. That is enough to measure something, even on a busy machine.
    let outcome = tree.check(&["--rehearse", "--within", "60"], None).exits_with(4);
    outcome.assert_stdout(&["the run on embedded was ended", "model embedded, "]);
    let [record] = &tree.records()[..] else { panic!("{outcome:?}") };
    assert!(!record.entries("sample").is_empty(), "{record:?}");
    assert_eq!(record.end(), Some("interrupted"));
    tree.scratch.wait_until_no_processes_left();
}

#[test]
fn unknown_arguments_are_refused_before_measuring() {
    let tree = Tree::with_packed_programs(&[]);
    for (option, value) in [("--scenarios", "nosuch"), ("--shape", "nosuch"), ("--", "--nosuch")] {
        let outcome = tree.check(&["--rehearse", option, value], None).exits_with(2);
        outcome.assert_stdout(&["error: ", "nosuch"]);
        assert!(!outcome.stdout.contains("output checks"), "{outcome:?}");
    }
    let outcome = tree.check(&["--nosuch"], None).exits_with(2);
    let expected = "error: no option `--nosuch`\nhint: scripts/gpu-check --help\n";
    assert!(outcome.stderr.ends_with(expected), "{outcome:?}");
    let outcome = tree.check(&["--help"], None);
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""), "{outcome:?}");
    let widest = outcome.stdout.lines().map(|line| line.chars().count()).max();
    assert!(widest.is_some_and(|widest| (40..=80).contains(&widest)), "{outcome:?}");
    assert!(!tree.scratch.join("out").exists() || tree.records().is_empty());
}

#[test]
fn a_damaged_program_is_not_started() {
    let tree = Tree::with_packed_programs(&[]);
    std::fs::copy(tree.scratch.join("gpu-check/manifest"), tree.scratch.join("gpu-check/steady-engine.xz"))
        .unwrap();
    let outcome = tree.check(&["--rehearse"], None).exits_with(5);
    outcome.assert_stdout(&["steady-engine.xz` is damaged\nhint: copy"]);
    assert_eq!(tree.records().len(), 0);
}

#[test]
fn a_folder_without_packed_programs_is_refused_with_the_pack_command() {
    let tree = Tree::with_programs(&[]);
    let outcome = tree.check(&["--rehearse", "elsewhere"], None).exits_with(2);
    let hint = format!("hint: scripts/gpu-check --pack {}", tree.scratch.join("elsewhere").display());
    outcome.assert_stderr(&[&hint]);
    // A folder with other files is not replaced.
    std::fs::create_dir(tree.scratch.join("full")).unwrap();
    std::fs::write(tree.scratch.join("full/letter"), "text").unwrap();
    let outcome = tree.pack("full");
    assert_ne!(outcome.code, Some(0), "{outcome:?}");
    outcome.assert_stderr(&["is not empty"]);
    assert!(tree.scratch.join("full/letter").is_file());
}

/// A checkout of two invented engines, with this project's scripts.
struct Tree {
    scratch: Scratch,
}

impl Tree {
    /// A tree with built programs. The engine `steady` gets these settings.
    fn with_programs(settings: &[&str]) -> Self {
        let scratch = Scratch::outside_checkout();
        scratch.write_tree(&[("steady", REFERENCE), ("newcomer", NEWCOMER)]);
        std::fs::create_dir_all(scratch.join("scripts/gpu")).unwrap();
        for script in ["gpu-check", "gpu/environment.sh", "gpu/pack.py", "gpu/outcome.py"] {
            let script = format!("scripts/{script}");
            copy_program(&root().join(&script), &scratch.join(&script));
        }
        std::fs::create_dir(scratch.join("built")).unwrap();
        copy_program(Path::new(env!("CARGO_BIN_EXE_orchestrate")), &scratch.join("built/orchestrate"));
        copy_program(fake_engine(), &scratch.join("built/newcomer-cuda"));
        scratch.engine("built/steady-engine", &quoted(settings));
        Self { scratch }
    }

    fn with_packed_programs(settings: &[&str]) -> Self {
        let tree = Self::with_programs(settings);
        tree.pack("gpu-check").exits_with(0);
        tree
    }

    fn pack(&self, folder: &str) -> Outcome {
        // Fast compression; the size does not matter.
        finish(self.script().env("XZ_OPT", "-0").args(["--pack", "--from", "built", folder]))
    }

    /// Runs the script without cargo. With `driver`, it gets the driver's folder and a Python.
    fn check(&self, options: &[&str], driver: Option<&Path>) -> Outcome {
        let mut script = self.script();
        script.env("PATH", "/usr/bin:/bin").args(["--results", "out"]).args(options);
        if let Some(driver) = driver {
            script.env("LD_LIBRARY_PATH", driver).env("ORCHESTRATE_PYTHON", self.scratch.join("python"));
        }
        finish(&mut script)
    }

    fn script(&self) -> Command {
        let mut script = self.scratch.command(self.scratch.join("scripts/gpu-check"));
        script.env_remove("ORCHESTRATE_VERIFIER").current_dir(&self.scratch.path);
        script
    }

    /// The records, in the order of their runs.
    fn records(&self) -> Vec<Record> {
        let mut files = files(&self.scratch.join("out"));
        files.retain(|file| file.extension().is_some_and(|extension| extension == "jsonl"));
        files.iter().map(|file| Record::read(file)).collect()
    }
}

fn model_of(record: &Record) -> &str {
    record.0[0]["plan"]["configurations"][0]["model"]["name"].as_str().unwrap()
}

/// Writes a program that starts the fake engine and needs a library. The library is in a Python's packages and not in the
/// loader's path.
fn write_program_with_library(scratch: &Scratch, name: &str) {
    let packages = scratch.join("packages/nvidia/cu13/lib");
    std::fs::create_dir_all(&packages).unwrap();
    let fake = fake_engine().display();
    let source = format!(
        "#include <unistd.h>\nint needed(void);\nint main(int n, char **words) {{ return needed() + execv(\"{fake}\", words); }}"
    );
    std::fs::write(scratch.join("program.c"), source).unwrap();
    std::fs::write(scratch.join("library.c"), "int needed(void) { return 0; }").unwrap();
    let library = packages.join("libneeded.so.1");
    compile(
        command("cc")
            .args(["-shared", "-fPIC", "-Wl,-soname,libneeded.so.1", "-o"])
            .arg(&library)
            .arg(scratch.join("library.c")),
    );
    compile(command("cc").arg("-o").arg(scratch.join(name)).arg(scratch.join("program.c")).arg(&library));
    let packages = scratch.join("packages");
    scratch.script("python", &format!("PYTHONPATH='{}' exec python3 \"$@\"", packages.display()));
}

fn compile(cc: &mut Command) {
    assert!(cc.status().unwrap().success(), "a C compiler is needed");
}
