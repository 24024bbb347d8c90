//! Engines with a separate program for a device, on machines with and without a GPU driver. The tree and its engines are
//! invented. Stand-in libraries act as a present driver or as an absent one.

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::support::record::{Record, files};
use crate::support::snapshot::assert_snapshot;
use crate::support::{Outcome, Scratch, build_command, driver, finish, root, without_line_breaks};

const NO_DRIVER: &str = "no NVIDIA driver found";
/// The second missing requirement of the engine `heavy` in these tests.
const NO_ENVIRONMENT: &str = "its environment is not set up (4.0 GB to download)";
/// The hint of `heavy` for users who cannot set up its environment.
const OTHER_WAY: &str =
    "ORCHESTRATE_PYTHON_HEAVY=/a/python/that/has/it; heavy's own guide says where it comes from";

/// A tree of four engines. `able` has a separate program for CUDA, and `shared` has one program for all devices. `plain`
/// has no devices in its manifest. `heavy` always needs a GPU, and Python packages.
fn tree() -> Scratch {
    let scratch = Scratch::outside_checkout();
    let needs = "driver = \"nvidia\"\n";
    let able = format!(
        "about = \"has a program for each\"\nbinary = \"able-engine\"\nreference = true\n[build]\n{}\
         [devices.cuda]\nbinary = \"able-cuda\"\n[devices.cuda.build]\n{}note = \"about a moment\"\n[devices.cuda.needs]\n{needs}",
        build_command("able-engine"),
        build_command("able-cuda"),
    );
    let shared = format!(
        "about = \"one program for all\"\nbinary = \"shared-engine\"\n[build]\n{}[devices.cuda.needs]\n{needs}",
        build_command("shared-engine")
    );
    let plain = format!(
        "about = \"knows no device\"\nbinary = \"plain-engine\"\n[build]\n{}",
        build_command("plain-engine")
    );
    let heavy = format!(
        "about = \"needs a GPU\"\nbinary = \"heavy-engine\"\n[build]\n{}[needs]\n{needs}[environment]\npython = \"3.12\"\n\
         requirements = \"requirements.txt\"\ndownload_mb = 4000\ninstalled_mb = 9000\ninstall_hint = \"{OTHER_WAY}\"\n",
        build_command("heavy-engine")
    );
    scratch.write_tree(&[("able", &able), ("shared", &shared), ("plain", &plain), ("heavy", &heavy)]);
    scratch
}

fn orchestrate(scratch: &Scratch, driver_folder: &PathBuf, arguments: &[&str]) -> Command {
    let mut command = scratch.orchestrate_without_checkout();
    command.args(arguments).env("LD_LIBRARY_PATH", driver_folder);
    command
}

fn call(scratch: &Scratch, driver_folder: &PathBuf, arguments: &[&str]) -> Outcome {
    finish(&mut orchestrate(scratch, driver_folder, arguments))
}

const DECODE: &[&str] =
    &["-s", "decode", "--depth", "0", "--blocks", "1", "--iterations", "1", "--warmup", "1"];

fn measure(scratch: &Scratch, driver_folder: &PathBuf, arguments: &[&str]) -> (Outcome, Record) {
    let mut command = orchestrate(scratch, driver_folder, DECODE);
    command.args(arguments).arg("-m").arg(root().join("models/embedded"));
    let outcome = finish(command.arg("--results").arg(scratch.results()));
    let record = Record::only_one_in(&scratch.results());
    scratch.assert_no_processes_left();
    (outcome, record)
}

/// The programs that were built, in alphabetical order.
fn built(scratch: &Scratch) -> Vec<String> {
    let entries = std::fs::read_dir(scratch.join("target/release")).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries.map(|it| it.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn configuration<'a>(record: &'a Record, label: &str) -> &'a Value {
    &record.0[0]["plan"]["configurations"][record.configuration(label)]
}

/// The name of the program that was started.
fn program(record: &Record, label: &str) -> String {
    let path = configuration(record, label)["command"][0].as_str().unwrap();
    path.rsplit('/').next().unwrap().to_string()
}

/// The device that each launch reported.
fn loaded_devices(record: &Record, label: &str) -> Vec<String> {
    let launches = record.launches_of(label).into_iter();
    launches.map(|it| it["loaded"]["device"].as_str().unwrap().to_string()).collect()
}

#[track_caller]
fn assert_fits_80_columns(outcome: &Outcome) {
    for line in outcome.stdout.lines().chain(outcome.stderr.lines()) {
        assert!(line.chars().count() <= 80, "{line}");
    }
}

// Runs.

#[test]
fn a_run_on_the_cpu_builds_no_program_for_another_device() {
    let scratch = tree();
    let (outcome, record) = measure(&scratch, &driver::present(&scratch), &["-e", "able", "-e", "shared"]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert_eq!(built(&scratch), ["able-engine", "shared-engine"]);
    assert_eq!(
        (program(&record, "able"), loaded_devices(&record, "able")),
        ("able-engine".into(), vec!["cpu".into()])
    );
    assert_eq!(configuration(&record, "able")["alone"], Value::Null);
}

#[test]
fn a_missing_driver_is_a_row_and_nothing_is_built() {
    let scratch = tree();
    let mut command = orchestrate(&scratch, &driver::absent(&scratch), DECODE);
    command.args(["-e", "able", "--device", "cuda", "-m"]).arg(root().join("models/embedded"));
    let outcome = finish(command.arg("--results").arg(scratch.results())).exits_with(4);
    outcome.assert_stdout(&[NO_DRIVER, "nvidia-smi"]).assert_stderr(&["no record: "]);
    assert!(files(&scratch.results()).is_empty());
    assert!(!scratch.join("target").exists());
}

#[test]
fn engines_without_their_device_are_rows_and_the_others_are_measured() {
    let scratch = tree();
    let (outcome, record) =
        measure(&scratch, &driver::absent(&scratch), &["--all", "--device", "cpu,cuda:0"]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    // The manifest of `plain` names no devices, so the same program is started on each device.
    assert_eq!(program(&record, "plain cuda:0"), "plain-engine");
    for label in ["able cpu", "shared cpu", "plain cpu", "plain cuda:0"] {
        assert_eq!((record.samples_of(label).len(), record.failures_of(label).len()), (1, 0), "{label}");
    }
    let two_reasons = format!("{NO_DRIVER}; {NO_ENVIRONMENT}");
    for (label, missing) in [
        ("able cuda:0", NO_DRIVER),
        ("shared cuda:0", NO_DRIVER),
        ("heavy cpu", &two_reasons),
        ("heavy cuda:0", &two_reasons),
    ] {
        let failure = record.failure_of(label);
        assert_eq!((&failure["kind"], &failure["message"]), (&"unavailable".into(), &missing.into()));
    }
    assert_eq!(built(&scratch), ["able-engine", "plain-engine", "shared-engine"]);
}

#[test]
fn a_row_names_all_missing_requirements_and_their_remedies_in_the_same_order() {
    let scratch = tree();
    // A run that measures nothing has no record, so another engine is measured too.
    let heavy = ["-e", "heavy", "-e", "able", "--full"];
    let (outcome, record) = measure(&scratch, &driver::absent(&scratch), &heavy);
    let failure = record.failure_of("heavy");
    let hint = failure["hint"].as_str().unwrap();
    let (first, second) = hint.split_once('\n').unwrap();
    assert!(first.contains("nvidia-smi"), "the driver must come before the packages: {hint}");
    assert_eq!(second, OTHER_WAY);
    let page = without_line_breaks(&outcome.stdout);
    for expected in
        [&format!("{NO_DRIVER}; {NO_ENVIRONMENT}"), &format!("hint: {first}"), &format!("hint: {OTHER_WAY}")]
    {
        assert!(page.contains(expected), "{expected}: {}", outcome.stdout);
    }
    // With a driver, the first remedy is the set-up. The second remedy is printed too.
    let scratch = tree();
    let present = driver::present(&scratch);
    let (outcome, record) = measure(&scratch, &present, &heavy);
    let failure = record.failure_of("heavy");
    assert_eq!(failure["message"], NO_ENVIRONMENT);
    let (first, second) = failure["hint"].as_str().unwrap().split_once('\n').unwrap();
    assert!(first.ends_with("setup heavy") && second == OTHER_WAY, "{failure}");
    outcome.assert_stdout(&["\n  hint: ORCHESTRATE_PYTHON_HEAVY="]);
    let checked = call(&scratch, &driver::absent(&scratch), &["check", "heavy"]);
    let expected = format!("cannot run here: {NO_DRIVER}; {NO_ENVIRONMENT}");
    checked.assert_stderr(&[&expected]);
    assert!(checked.stderr.ends_with(&format!("\nhint: {OTHER_WAY}\n")), "{checked:?}");
}

#[test]
fn with_a_driver_each_device_gets_its_program_built_and_measured() {
    let scratch = tree();
    let arguments = ["-e", "able", "-e", "shared", "--device", "cpu,cuda:0"];
    let (outcome, record) = measure(&scratch, &driver::present(&scratch), &arguments);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let builds: Vec<_> = outcome.stderr.lines().filter(|line| line.contains(": building")).collect();
    assert_eq!(
        builds,
        ["able: building", "able: building for cuda (about a moment)", "shared: building"],
        "each program must be built once, even for several devices"
    );
    let program_and_device =
        |label: &str| (program(&record, label), loaded_devices(&record, label)[0].clone());
    assert_eq!(program_and_device("able cpu"), ("able-engine".into(), "cpu".into()));
    assert_eq!(program_and_device("able cuda:0"), ("able-cuda".into(), "cuda:0".into()));
    assert_eq!(program_and_device("shared cuda:0"), ("shared-engine".into(), "cuda:0".into()));
    for label in ["able cpu", "able cuda:0", "shared cpu", "shared cuda:0"] {
        assert_eq!(record.samples_of(label).len(), 1, "{label}");
    }
    // A paused process keeps its device memory, so no other engine is resident at the same time.
    assert_eq!(configuration(&record, "able cuda:0")["alone"], true);
}

#[test]
fn a_run_on_another_device_does_not_build_the_cpu_program() {
    let scratch = tree();
    let (outcome, record) =
        measure(&scratch, &driver::present(&scratch), &["-e", "able", "--device", "cuda"]);
    assert_eq!((outcome.code, program(&record, "able")), (Some(0), "able-cuda".into()), "{outcome:?}");
    assert_eq!(built(&scratch), ["able-cuda"]);
}

#[test]
fn a_failed_build_fails_only_the_rows_of_its_device() {
    let scratch = tree();
    let manifest = "about = \"half broken\"\nbinary = \"plain-engine\"\n[devices.cuda]\nbinary = \"half-cuda\"\n\
                    [devices.cuda.build]\ncommand = [\"./engines/half/build\"]\n";
    scratch.write_tree(&[("half", manifest)]);
    // The script is found in the tree, from any working directory.
    scratch.script("engines/half/build", "echo error: no compiler for it in $(pwd); exit 1");
    let driver_folder = driver::present(&scratch);
    call(&scratch, &driver_folder, &["setup", "plain"]);
    let mut command = orchestrate(&scratch, &driver_folder, DECODE);
    command.args(["-e", "half", "--device", "cpu,cuda", "-m"]).arg(root().join("models/embedded"));
    let outcome =
        finish(command.arg("--results").arg(scratch.results()).current_dir(scratch.join("engines")));
    let record = Record::only_one_in(&scratch.results());
    assert_eq!((outcome.code, record.samples_of("half cpu").len()), (Some(4), 1), "{outcome:?}");
    let failure = record.failure_of("half cuda");
    let expected = format!("it does not build: no compiler for it in {}", scratch.path.display());
    assert_eq!(failure["message"], expected);
    assert!(failure["hint"].as_str().unwrap().ends_with("setup half --device cuda"), "{failure}");
}

#[test]
fn the_verifier_runs_its_cpu_program_in_f32_even_if_engines_are_measured_on_a_gpu() {
    let scratch = tree();
    let driver_folder = driver::present(&scratch);
    call(&scratch, &driver_folder, &["setup", "able"]);
    let (outcome, record) =
        measure(&scratch, &driver_folder, &["-e", "able", "--device", "cuda", "--verifier", "able"]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let verifier = configuration(&record, "able (verifier)");
    assert_eq!((&verifier["device"], &verifier["dtype"]), (&"cpu".into(), &"f32".into()));
    assert_eq!(program(&record, "able (verifier)"), "able-engine");
    let devices = loaded_devices(&record, "able (verifier)");
    assert!(!devices.is_empty() && devices.iter().all(|it| it == "cpu"), "{devices:?}");
    assert_eq!(
        (program(&record, "able"), &*loaded_devices(&record, "able")[0]),
        ("able-cuda".into(), "cuda")
    );
}

#[test]
fn a_verifier_without_a_cpu_program_is_refused_with_the_reason() {
    let scratch = tree();
    let driver_folder = driver::present(&scratch);
    call(&scratch, &driver_folder, &["setup", "able", "--device", "cuda"]);
    let arguments = ["-e", "able", "--device", "cuda", "--verifier", "able", "-s", "decode", "--depth", "0"];
    let outcome = call(&scratch, &driver_folder, &arguments).exits_with(2);
    outcome.assert_stderr(&["--verifier: `able` cannot run here: not built"]);
    assert!(outcome.stderr.ends_with("setup able\n"), "{outcome:?}");
}

#[test]
fn a_baseline_keeps_the_program_of_the_device_that_was_measured() {
    let scratch = tree();
    let mut command = orchestrate(&scratch, &driver::present(&scratch), &["-e", "able", "--device", "cuda"]);
    command.args(["-s", "decode", "--depth", "0", "--blocks", "2", "--iterations", "1", "--warmup", "1"]);
    command.args(["--save-baseline", "mine", "-m"]);
    let outcome = finish(command.arg(root().join("models/embedded")).arg("--results").arg(scratch.results()));
    let text = std::fs::read_to_string(scratch.join("home/baselines/mine/baseline.json"));
    let baseline: Value = serde_json::from_str(&text.unwrap_or_else(|_| panic!("{outcome:?}"))).unwrap();
    let path = baseline["configurations"][0]["program"]["path"].as_str().unwrap();
    assert!(path.ends_with("target/release/able-cuda"), "{baseline}");
}

// Set-up and other commands.

#[test]
fn set_up_builds_for_an_absent_device_and_prints_the_programs_path() {
    let scratch = tree();
    let absent = driver::absent(&scratch);
    let arguments = ["setup", "able", "--device", "cuda"];
    assert_snapshot("setup-without-driver", &scratch, &mut orchestrate(&scratch, &absent, &arguments));
    assert_eq!(built(&scratch), ["able-cuda"]);
    let two_devices = ["setup", "shared", "--device", "cpu,cuda"];
    assert_snapshot(
        "setup-shared-without-driver",
        &scratch,
        &mut orchestrate(&scratch, &absent, &two_devices),
    );
    let present = driver::present(&scratch);
    assert_snapshot("setup-with-driver", &scratch, &mut orchestrate(&scratch, &present, &arguments));
}

#[test]
fn set_up_says_that_only_a_run_shows_whether_a_device_outside_the_manifest_is_supported() {
    let scratch = tree();
    let driver_folder = driver::present(&scratch);
    let outcome = call(&scratch, &driver_folder, &["setup", "plain", "--device", "metal,metal"]);
    let expected = "`plain` is ready; only a run shows whether it supports metal\n";
    assert_eq!((outcome.code, &*outcome.stdout), (Some(0), expected), "{outcome:?}");
    // The manifest of `able` names only the device `cuda`, so a hint suggests that name.
    let outcome = call(&scratch, &driver_folder, &["setup", "able", "--device", "gpu"]);
    assert!(outcome.stdout.ends_with("hint: ./bin/orchestrate setup able --device cuda\n"), "{outcome:?}");
    finish(scratch.orchestrate_without_checkout().args(["setup", "plain", "--device", "cpu,"])).exits_with(2);
}

#[test]
fn a_mistyped_device_is_refused_with_a_suggestion_before_any_build() {
    let scratch = tree();
    let arguments = ["setup", "able", "--device", "cdua:1"];
    let outcome = call(&scratch, &driver::present(&scratch), &arguments);
    let expected = "no device `cdua:1`\nhint: ./bin/orchestrate setup able --device cuda:1\n";
    assert_eq!((outcome.code, outcome.stderr.ends_with(expected)), (Some(2), true), "{outcome:?}");
    assert_eq!(built(&scratch), Vec::<String>::new());
}

#[test]
fn the_hint_of_a_failed_build_command_replaces_the_usual_hint() {
    let scratch = Scratch::outside_checkout();
    let script = "echo error: no compiler; echo hint: install one; exit 1";
    let manifest =
        format!("about = \"x\"\nbinary = \"x\"\n[build]\ncommand = [\"sh\", \"-c\", \"{script}\"]\n");
    scratch.write_tree(&[("poor", &manifest)]);
    let outcome = finish(scratch.orchestrate_without_checkout().args(["setup", "poor"]));
    assert!(outcome.stderr.ends_with("error: no compiler\nhint: install one\n"), "{outcome:?}");
}

#[test]
fn the_note_of_a_build_is_printed_before_each_build() {
    let scratch = tree();
    let (driver_folder, arguments) = (driver::present(&scratch), ["setup", "able", "--device", "cuda"]);
    call(&scratch, &driver_folder, &arguments);
    let again = call(&scratch, &driver_folder, &arguments);
    let expected = "able: bringing its build for cuda up to date (about a moment)\n";
    assert!(again.stderr.starts_with(expected), "{again:?}");
}

#[test]
fn set_up_downloads_no_packages_for_an_engine_that_cannot_run() {
    let scratch = tree();
    let mut command = orchestrate(&scratch, &driver::absent(&scratch), &["setup", "heavy"]);
    assert_snapshot("setup-heavy-without-driver", &scratch, &mut command);
    assert!(!scratch.join("home/environments").exists());
}

#[test]
fn a_build_that_produces_no_program_is_an_error() {
    let scratch = Scratch::outside_checkout();
    let manifest = "about = \"idle\"\nbinary = \"idle-engine\"\n[build]\ncommand = [\"true\"]\n";
    scratch.write_tree(&[("idle", manifest)]);
    assert_snapshot("setup-idle", &scratch, scratch.orchestrate_without_checkout().args(["setup", "idle"]));
}

#[test]
fn lists_show_device_programs_and_missing_requirements_in_80_columns() {
    let scratch = tree();
    let absent = driver::absent(&scratch);
    let list = ["setup", "--list"];
    assert_snapshot("engines-devices", &scratch, &mut orchestrate(&scratch, &absent, &["engines"]));
    assert_snapshot("setup-list-devices", &scratch, &mut orchestrate(&scratch, &absent, &list));
    for arguments in [&["engines"][..], &list, &["setup", "able", "--device", "cuda"], &["setup", "heavy"]] {
        assert_fits_80_columns(&call(&scratch, &absent, arguments));
    }
    let present = driver::present(&scratch);
    assert_snapshot("engines-devices-driver", &scratch, &mut orchestrate(&scratch, &present, &["engines"]));
    assert_fits_80_columns(&call(&scratch, &present, &["engines"]));
}

#[test]
fn the_lists_of_real_engines_fit_into_80_columns() {
    let scratch = Scratch::new();
    for driver_folder in [driver::absent(&scratch), driver::present(&scratch)] {
        for arguments in [&["engines"][..], &["setup", "--list"]] {
            let mut command = scratch.orchestrate();
            command.args(arguments).env("LD_LIBRARY_PATH", &driver_folder).current_dir(root());
            // No engine is built in this target directory, so that all messages are printed.
            command.env("CARGO_TARGET_DIR", scratch.join("target")).env("PATH", "/usr/bin:/bin");
            let outcome = finish(&mut command).exits_with(0);
            assert!(outcome.stdout.lines().count() > 5, "{outcome:?}");
            assert_fits_80_columns(&outcome);
        }
    }
}

#[test]
fn the_option_device_is_refused_with_list_and_with_remove() {
    let scratch = tree();
    for other in ["--list", "--remove"] {
        finish(scratch.orchestrate_without_checkout().args(["setup", "able", "--device", "cuda", other]))
            .exits_with(2);
    }
}

#[test]
fn an_engine_is_checked_on_the_requested_device() {
    let scratch = tree();
    let arguments = ["check", "able", "--device", "cuda"];
    let without = call(&scratch, &driver::absent(&scratch), &arguments).exits_with(4);
    without.assert_stderr(&[&format!("`able` cannot run here: {NO_DRIVER}")]);
    let present = driver::present(&scratch);
    call(&scratch, &present, &["setup", "able", "--device", "cuda"]);
    let mut command = orchestrate(&scratch, &present, &arguments);
    let checked = finish(command.arg("-m").arg(root().join("models/embedded")));
    assert!(
        checked.stdout.starts_with("checking `able` (") && checked.stdout.contains("able-cuda)"),
        "{checked:?}"
    );
    // The fake engine accepts a missing model, so the page shows the request with this model.
    checked.assert_stdout(&["sent      {\"device\":\"cuda\",\"model\":\"/no/such/model\""]);
}

#[test]
fn a_request_contains_the_requested_device() {
    let scratch = tree();
    let mut command = orchestrate(&scratch, &driver::absent(&scratch), &["request", "able", "decode"]);
    let outcome =
        finish(command.args(["--device", "cuda:1", "-m"]).arg(root().join("models/embedded"))).exits_with(0);
    let load = outcome.stdout.lines().find(|line| line.contains("\"load\"")).unwrap();
    assert_eq!(serde_json::from_str::<Value>(load).unwrap()["device"], "cuda:1");
}

#[test]
fn a_manifest_with_a_device_in_place_of_a_family_is_refused() {
    let scratch = Scratch::outside_checkout();
    let manifest = "about = \"x\"\nbinary = \"x\"\n[devices.\"cuda:1\"]\nbinary = \"y\"\n";
    scratch.write_tree(&[("wrong", manifest)]);
    assert_snapshot("wrong-device", &scratch, scratch.orchestrate_without_checkout().arg("engines"));
}
