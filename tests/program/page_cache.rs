//! The scenario `load` with files from memory and from the disk.

use serde_json::Value;

use crate::support::record::Record;
use crate::support::{Scratch, copy_folder, finish, without_line_breaks};

/// Prints how many pages of a file are in memory, and how many it has.
const PAGES: &str = r#"import ctypes, mmap, os, sys
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
size = os.path.getsize(sys.argv[1])
pages = -(-size // mmap.PAGESIZE)
file = os.open(sys.argv[1], os.O_RDONLY)
address = libc.mmap(None, ctypes.c_size_t(size), mmap.PROT_READ, mmap.MAP_SHARED, file, ctypes.c_long(0))
states = ctypes.create_string_buffer(pages)
assert libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), states) == 0
print(sum(state & 1 for state in states.raw[:pages]), pages)
"#;

const LOAD: &[&str] = &["-s", "load", "--blocks", "5", "--verifier", "none"];

/// An engine that writes the pages of its model that are in memory as it starts into the file `pages`.
fn engine_that_counts_pages(scratch: &Scratch, model: &std::path::Path) -> std::path::PathBuf {
    std::fs::write(scratch.join("pages.py"), PAGES).unwrap();
    let [count, pages] = ["pages.py", "pages"].map(|name| scratch.join(name));
    let weights = model.join("model.safetensors");
    let engine = scratch.engine("fake", "");
    scratch.script(
        "counts",
        &format!(
            "python3 '{}' '{}' >> '{}'\nexec '{}'",
            count.display(),
            weights.display(),
            pages.display(),
            engine.display()
        ),
    )
}

#[test]
fn files_come_from_the_disk_or_from_memory() {
    let scratch = Scratch::new();
    let model = scratch.join("model");
    copy_folder(&model_files::embedded::folder().unwrap(), &model);
    for mode in ["warm", "one-shot"] {
        let _ = std::fs::remove_file(scratch.join("pages"));
        let mut command = scratch.orchestrate();
        command.arg("-e").arg(engine_that_counts_pages(&scratch, &model)).arg("-m").arg(&model);
        let json = scratch.join("report.json");
        command.args(LOAD).args(["--mode", mode, "--json"]).arg(&json);
        let outcome = finish(command.arg("--results").arg(scratch.results())).exits_with(0);
        let counted = std::fs::read_to_string(scratch.join("pages")).unwrap();
        let counted: Vec<(u32, u32)> = counted
            .lines()
            .map(|line| line.split_once(' ').unwrap())
            .map(|(in_memory, all)| (in_memory.parse().unwrap(), all.parse().unwrap()))
            .collect();
        let from_disk = counted.iter().filter(|(in_memory, _)| *in_memory == 0).count();
        let from_memory = counted.iter().filter(|(in_memory, all)| in_memory == all).count();
        // Other launches ask for the engine's facts.
        assert!(
            from_disk == 5 && from_memory >= 5 && from_disk + from_memory == counted.len(),
            "{counted:?}"
        );
        let report: Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
        let cases: Vec<&str> =
            report["cases"].as_array().unwrap().iter().map(|it| it["case"].as_str().unwrap()).collect();
        assert_eq!(cases, ["load", "load from disk"]);
        assert!(report["cases"].as_array().unwrap().iter().all(|it| it["failure"].is_null()), "{report}");
        if mode == "warm" {
            // The engine reads no file, but the cost of the disk has its row.
            outcome.assert_stdout(&["what each setting of `load` changes, by cold start:", "from disk"]);
        }
    }
}

#[test]
fn files_that_stay_in_memory_leave_the_other_case_measured() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let model = folder.path().join("model");
    copy_folder(&model_files::embedded::folder().unwrap(), &model);
    let scratch = Scratch::new();
    let mut command = scratch.orchestrate();
    command.arg("-e").arg(scratch.engine("one", "")).arg("-m").arg(&model).args(LOAD);
    let outcome = finish(command.arg("--results").arg(scratch.results()));
    let record = Record::only_one_in(&scratch.results());
    let failure = record.only("failure");
    assert_eq!((&failure["kind"], &failure["case"]), (&"unsupported".into(), &1.into()), "{failure}");
    let why = "needs the model's files out of the page cache, and 100 % of their pages stay there: ";
    assert!(failure["message"].as_str().unwrap().starts_with(why), "{failure}");
    assert_eq!(record.samples_of("one").len(), 5);
    assert!(without_line_breaks(&outcome.stdout).contains("100 % of their pages stay there"), "{outcome:?}");
}

#[test]
fn only_a_launch_has_a_page_cache() {
    let scratch = Scratch::new();
    let run = |options: &[&str]| {
        let mut command = scratch.orchestrate();
        finish(command.arg("-e").arg(scratch.engine("one", "")).args(options).arg("--dry-run"))
    };
    // The default suite measures no launch from the disk.
    for options in [&["-s", "load", "--page-cache", "kept"][..], &["-s", "default"]] {
        let planned = run(options).exits_with(0).stdout;
        assert!(planned.contains("load: 1 request") && !planned.contains("from disk"), "{planned}");
    }
    let refused = run(&["-s", "decode", "--page-cache", "dropped"]).exits_with(2);
    let why = "--page-cache: none of the selected scenarios measures a launch";
    refused.assert_stderr(&[why, "hint: -s load"]);
}
