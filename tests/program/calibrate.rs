//! `orchestrate calibrate`: engines with their twins, the noise floors of the machine, and the noise floors in later runs.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::support::record::Record;
use crate::support::{Outcome, Scratch, fake_engine, finish};

/// An engine whose launches differ by a few per cent. All requests of one launch take the same time.
fn noisy(scratch: &Scratch) -> PathBuf {
    scratch.engine("noisy", "--noise-percent 5 --noise-seed 1")
}

fn orchestrate(
    scratch: &Scratch,
    subcommand: &str,
    results: &Path,
    options: &[&str],
    engines: &[&Path],
) -> Outcome {
    let mut orchestrate = scratch.orchestrate();
    orchestrate
        .args([subcommand, "-s", "decode", "--depth", "0", "--warmup", "1"])
        .args(options)
        .arg("--results")
        .arg(results);
    engines.iter().for_each(|engine| {
        orchestrate.arg("-e").arg(engine);
    });
    finish(&mut orchestrate)
}

fn calibrate(scratch: &Scratch, options: &[&str], engines: &[&Path]) -> Outcome {
    orchestrate(scratch, "calibrate", &scratch.join("calibrations"), options, engines)
}

/// Measures the noise floors of engines in this number of blocks, and stores them.
fn store_floors(scratch: &Scratch, blocks: &str, engines: &[&Path]) -> Outcome {
    calibrate(scratch, &["--blocks", blocks, "--iterations", "1"], engines).exits_with(0)
}

/// The record of a run of one short block.
fn run(scratch: &Scratch, options: &[&str], engines: &[&Path]) -> Record {
    let _ = std::fs::remove_dir_all(scratch.results());
    let options = [&["--blocks", "1", "--iterations", "1"], options].concat();
    orchestrate(scratch, "run", &scratch.results(), &options, engines).exits_with(0);
    Record::only_one_in(&scratch.results())
}

fn floors(record: &Record) -> Vec<&Value> {
    record.0[0]["noise_floors"].as_array().into_iter().flatten().collect()
}

/// The file of the machine's noise floors.
fn floors_file(scratch: &Scratch) -> PathBuf {
    let mut files = crate::support::record::files(&scratch.join("home/calibration"));
    assert_eq!(files.len(), 1, "{files:?}");
    files.remove(0)
}

#[test]
fn calibrated_noise_floors_are_in_the_header_of_every_later_run() {
    let scratch = Scratch::new();
    let noisy = noisy(&scratch);
    let outcome = store_floors(&scratch, "6", &[&noisy]);
    scratch.assert_no_processes_left();
    let shown = |word: &str| outcome.stdout.lines().find(|line| line.contains(word)).unwrap_or_default();
    assert!(shown("decode  ").starts_with("noisy") && shown("decode  ").ends_with('6'), "{outcome:?}");
    outcome.assert_stdout(&[&format!("`{}`", floors_file(&scratch).display())]);
    // The calibration launched a twin of each engine, and knew no noise floor.
    let calibration = Record::only_one_in(&scratch.join("calibrations"));
    assert_eq!(calibration.launches_of("noisy (twin)").len(), 6);
    assert_eq!(floors(&calibration).len(), 0);

    let record = run(&scratch, &[], &[fake_engine(), &noisy]);
    let configuration = record.configuration("noisy");
    let floors = floors(&record);
    assert!(floors.iter().all(|floor| floor["configuration"] == configuration), "{floors:?}");
    let decode = floors.iter().find(|floor| floor["metric"] == "decode_rate").unwrap();
    assert_eq!((&decode["workload"], &decode["since"]), (&"decode".into(), &calibration.0[0]["started"]));
    for comparison in ["paired", "between"] {
        let (size, blocks) = (&decode[comparison]["log_ratio"], &decode[comparison]["blocks"]);
        assert!(size.as_f64().unwrap() > 0.0 && *blocks == 6, "{decode}");
    }
    // The noise floors do not apply to another number of threads. One processor allows no other number.
    if std::thread::available_parallelism().is_ok_and(|processors| processors.get() > 1) {
        assert_eq!(self::floors(&run(&scratch, &["--threads", "1"], &[&noisy])).len(), 0);
    }
}

#[test]
fn a_new_calibration_replaces_only_its_own_engines() {
    let scratch = Scratch::new();
    let (noisy, quiet) = (noisy(&scratch), fake_engine());
    let engines: [&Path; 2] = [&noisy, quiet];
    store_floors(&scratch, "5", &engines);
    let before = run(&scratch, &[], &engines);
    store_floors(&scratch, "7", &[&noisy]);
    let after = run(&scratch, &[], &engines);
    let blocks = |record: &Record| -> Vec<(usize, u64)> {
        let decode = floors(record).into_iter().filter(|floor| floor["metric"] == "decode_rate");
        let configurations = ["noisy", "fake-engine"].map(|label| record.configuration(label));
        let engine =
            |floor: &Value| configurations.iter().position(|it| floor["configuration"] == *it).unwrap();
        decode.map(|floor| (engine(floor), floor["paired"]["blocks"].as_u64().unwrap())).collect()
    };
    assert_eq!((blocks(&before), blocks(&after)), (vec![(0, 5), (1, 5)], vec![(0, 7), (1, 5)]));
}

#[test]
fn an_unreadable_calibration_gives_a_warning_and_the_run_continues() {
    let scratch = Scratch::new();
    let noisy = noisy(&scratch);
    store_floors(&scratch, "5", &[&noisy]);
    let file = floors_file(&scratch);
    let bytes = std::fs::read(&file).unwrap();
    std::fs::write(&file, &bytes[..bytes.len() / 2]).unwrap();
    let record = run(&scratch, &[], &[&noisy]);
    assert_eq!(floors(&record).len(), 0);
    let warnings = record.entries("warning");
    let names_file =
        |warning: &&Value| warning["message"].as_str().unwrap().contains(&*file.to_string_lossy());
    assert_eq!(warnings.iter().copied().filter(names_file).count(), 1, "{warnings:?}");
    store_floors(&scratch, "5", &[&noisy]);
    assert!(!floors(&run(&scratch, &[], &[&noisy])).is_empty());
}

#[test]
fn a_calibration_of_one_block_is_shown_and_not_stored() {
    let scratch = Scratch::new();
    let outcome = calibrate(&scratch, &["--quick", "--iterations", "1"], &[&noisy(&scratch)]).exits_with(0);
    outcome.assert_stdout(&["not stored for later runs: that needs 5 blocks"]);
    assert!(!scratch.join("home/calibration").exists());
}

#[test]
fn noise_floors_are_available_as_json() {
    let scratch = Scratch::new();
    let options = ["--quick", "--iterations", "1", "--json", "-"];
    let floors = calibrate(&scratch, &options, &[&noisy(&scratch)]).json();
    let decode = floors.as_array().unwrap().iter().find(|it| it["metric"] == "decode_rate").unwrap();
    assert_eq!((&decode["engine"], &decode["paired"]["blocks"]), (&"noisy".into(), &1.into()));
}

#[test]
fn calibrate_refuses_options_without_effect_and_dry_run_lists_twins() {
    let scratch = Scratch::new();
    let noisy = noisy(&scratch);
    let with_value = [&["--order", "sequential"][..], &["--save-baseline", "x"], &["--fail-on", "warning"]];
    for flags in with_value.into_iter().chain([&["--pairs"][..], &["--wall-time"], &["--resources"]]) {
        let outcome = calibrate(&scratch, flags, &[&noisy]).exits_with(2);
        outcome.assert_stderr(&[&format!("takes no `{}", flags[0]), "\nhint: orchestrate calibrate "]);
        let hint = outcome.stderr.rsplit("hint: ").next().unwrap();
        assert!(!hint.contains(flags[0]), "{hint}");
    }
    let outcome = calibrate(&scratch, &["--dry-run"], &[&noisy]);
    outcome.assert_stdout(&["noisy (twin)", "20 blocks"]);
}

#[test]
fn calibrate_without_engines_uses_ready_ones_and_builds_nothing() {
    let scratch = Scratch::outside_checkout();
    scratch.write_tree(&[("absent", "about = \"a\"\nbinary = \"no-such-binary\"\n")]);
    let mut command = scratch.orchestrate_without_checkout();
    let outcome = finish(command.args(["calibrate", "-s", "decode", "--depth", "0"])).exits_with(2);
    outcome.assert_stderr(&["no engine is ready for calibration", "hint: "]);
}

/// Runs the hint of a report in a shell, as a user would paste it, but with five blocks.
fn calibrate_as_hinted(scratch: &Scratch, hint: &str) {
    let arguments = hint.strip_prefix("orchestrate ").unwrap_or_else(|| panic!("no command: {hint}"));
    let program = env!("CARGO_BIN_EXE_orchestrate");
    let script = format!("exec '{program}' {arguments} --blocks 5 --results calibrations");
    let mut shell = scratch.command("sh");
    finish(shell.args(["-c", &script]).current_dir(&scratch.path)).exits_with(0);
}

#[test]
fn the_hint_to_calibrate_measures_the_configuration_of_its_run() {
    let scratch = Scratch::new();
    let (noisy, other) = (noisy(&scratch), scratch.engine("an other", "--noise-percent 5"));
    let loads = ["--threads", "1", "--dtype", "bf16,f32", "--set", "load_ns=2000", "--set", "signal=\"9\""];
    let requests = ["--max-new-tokens", "7", "--prompt", "Hello you", "--seed", "3", "--temperature", "0.5"];
    for options in [&loads[..], &requests, &["--mode", "one-shot"]] {
        let run = || -> Value {
            let mut command = scratch.orchestrate();
            command.args([
                "-s",
                "decode",
                "--blocks",
                "5",
                "--iterations",
                "2",
                "--warmup",
                "1",
                "--json",
                "-",
            ]);
            command.args(options).arg("-e").arg(&noisy).arg("-e").arg(&other).arg("--reference").arg(&other);
            finish(command.current_dir(&scratch.path)).exits_with(0).json()
        };
        let before = run();
        assert!(!before["uncalibrated"].as_array().unwrap().is_empty(), "{options:?}");
        let hint = before["calibrate"].as_str().unwrap();
        calibrate_as_hinted(&scratch, hint);
        let after = run();
        assert_eq!(
            (&after["uncalibrated"], &after["calibrate"]),
            (&Value::Array(vec![]), &Value::Null),
            "{hint}"
        );
    }
}
