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

/// The pages in memory and all pages, at each start of the engine.
fn counted(scratch: &Scratch) -> Vec<(u32, u32)> {
    let text = std::fs::read_to_string(scratch.join("pages")).unwrap();
    std::fs::remove_file(scratch.join("pages")).unwrap();
    let of_line = |line: &str| {
        let (in_memory, all) = line.split_once(' ').unwrap();
        (in_memory.parse().unwrap(), all.parse().unwrap())
    };
    text.lines().map(of_line).collect()
}

#[test]
fn files_come_from_the_disk_or_from_memory() {
    let scratch = Scratch::new();
    let model = scratch.join("model");
    copy_folder(&model_files::embedded::folder().unwrap(), &model);
    let engine = engine_that_counts_pages(&scratch, &model);
    let run = |options: &[&str]| {
        let mut command = scratch.orchestrate();
        command.arg("-e").arg(&engine).arg("-m").arg(&model).args(LOAD).args(options);
        let json = scratch.join("report.json");
        let outcome = finish(command.arg("--json").arg(&json).arg("--results").arg(scratch.results()));
        let report: Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
        (outcome.exits_with(0), report["cases"].as_array().unwrap().clone(), counted(&scratch))
    };
    for mode in ["warm", "one-shot"] {
        let (outcome, cases, counted) = run(&["--mode", mode]);
        let from_disk = counted.iter().filter(|(in_memory, _)| *in_memory == 0).count();
        let from_memory = counted.iter().filter(|(in_memory, all)| in_memory == all).count();
        // The other launches ask for the engine's facts, or load the model for the first time.
        assert!(from_disk == 5 && from_memory >= 5 && counted.len() <= 12, "{counted:?}");
        let labels: Vec<&str> = cases.iter().map(|it| it["case"].as_str().unwrap()).collect();
        assert_eq!(labels, ["load", "load from disk"]);
        assert!(cases.iter().all(|it| it["failure"].is_null()), "{cases:?}");
        if mode == "warm" {
            // Both cases differ in one setting, and unverified output has no ratio.
            outcome.assert_stdout(&["no table of settings: no engine has verified output"]);
            let metrics = cases[0]["metrics"].as_array().unwrap();
            assert!(metrics.iter().any(|it| it["metric"] == "load_rate"), "{metrics:?}");
        }
    }
    // After the runs above the files would stay as they are, so this run begins with dropped pages.
    run(&["--page-cache", "dropped"]);
    let (_, _, counted) = run(&["--page-cache", "kept"]);
    let measured = &counted[counted.len() - 5..];
    assert!(measured.iter().all(|(in_memory, all)| in_memory == all), "{counted:?}");
}

#[test]
fn each_case_of_load_has_a_launch_of_its_own() {
    let scratch = Scratch::new();
    let file = scratch.join("run.toml");
    let scenario = "[scenarios.first]\nlike = \"load\"\nnew-tokens = [8, 1]\npage-cache = \"kept\"\n";
    std::fs::write(&file, format!("scenario = \"first\"\n{scenario}")).unwrap();
    let mut command = scratch.orchestrate();
    command.arg("run").arg(&file).arg("-e").arg(scratch.engine("one", "")).args(&LOAD[2..]);
    finish(command.arg("--results").arg(scratch.results())).exits_with(0);
    let record = Record::only_one_in(&scratch.results());
    let mut launches: Vec<&Value> = record.samples_of("one").iter().map(|it| &it["launch"]).collect();
    launches.dedup();
    assert_eq!(launches.len(), 10, "{launches:?}");
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
    let why = failure["message"].as_str().unwrap();
    assert!(why.starts_with("cannot read the files from the disk: 100 % of `"), "{failure}");
    assert_eq!(record.samples_of("one").len(), 5);
    // The machine is the reason, and the other case was measured.
    assert!(
        without_line_breaks(&outcome.exits_with(0).stdout).contains("cannot read the files from the disk")
    );
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
    refused.assert_stderr(&["--page-cache: none of the selected scenarios uses it"]);
}
