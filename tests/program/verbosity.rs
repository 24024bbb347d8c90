//! Tests of `--quiet` and `--verbose`.

use crate::support::{DECODE, Outcome, Scratch, build_command, finish, without_line_breaks};

/// Measures an engine without faults, and one that exits at its start.
fn measure(options: &[&str]) -> Outcome {
    let scratch = Scratch::new();
    let (sound, faulty) = (scratch.engine("sound", ""), scratch.script("ends-early", "exit 3"));
    let mut command = scratch.orchestrate();
    command.args(DECODE).args(["--blocks", "1", "--iterations", "2"]).args(options);
    finish(command.arg("-e").arg(sound).arg("-e").arg(faulty).arg("--results").arg(scratch.results()))
}

#[test]
fn a_quiet_run_prints_the_table_its_failures_and_nothing_else() {
    let usual = measure(&[]).exits_with(4);
    usual.assert_stderr(&["block 1 of 1", "recorded in "]).assert_stdout(&["in full:"]);
    let quiet = measure(&["-q"]).exits_with(4);
    quiet.assert_stdout(&["sound", "ends-early"]);
    assert!(!quiet.stdout.contains("in full:"), "{quiet:?}");
    let is_failure = |line: &str| line.starts_with("ends-early: exited");
    assert!(!quiet.stderr.is_empty() && quiet.stderr.lines().all(is_failure), "{quiet:?}");
}

#[test]
fn a_quiet_run_has_its_warnings_only_in_the_report() {
    let warning = "the prompts are those of every run with the nonce 5";
    measure(&["--nonce", "5"]).exits_with(4).assert_stderr(&[warning]);
    let quiet = measure(&["-q", "--nonce", "5"]).exits_with(4);
    assert!(!quiet.stderr.contains("warning: "), "{quiet:?}");
    assert!(without_line_breaks(&quiet.stdout).contains(warning), "{quiet:?}");
}

#[test]
fn a_verbose_run_prints_its_versions_launches_and_decisions() {
    let usual = measure(&[]).stderr;
    let verbose = measure(&["--verbose"]).exits_with(4);
    verbose.assert_stderr(&[
        concat!("  orchestrate ", env!("CARGO_PKG_VERSION")),
        "  machine: ",
        "  environment: ORCHESTRATE_VERIFIER=none\n",
        "  reference: sound\n",
        "  configuration sound: cpu, default dtype, ",
        "  sound: starts for block 1: /",
        "  sound: fake 1.2.3, cpu, ",
        "  decode: after 1 block: ends: the number of blocks is fixed\n",
    ]);
    assert!(!usual.contains("starts for block") && !usual.contains("  machine: "), "{usual}");
    assert!(!verbose.stderr.contains("{\"type\":"), "the lines of the protocol need --debug: {verbose:?}");
}

#[test]
fn a_verbose_run_explains_its_interim_analyses() {
    let scratch = Scratch::new();
    let mut command = scratch.orchestrate();
    command.args(["-v", "-s", "decode", "--depth", "0", "--iterations", "2", "--interval", "99%"]);
    for name in ["one", "other"] {
        command.arg("-e").arg(scratch.engine(name, ""));
    }
    let outcome = finish(command.arg("--results").arg(scratch.results())).exits_with(0);
    let decision = "  decode: after 5 blocks: ends: every interval is within ±99 %\n";
    outcome.assert_stderr(&[decision]);
    assert_eq!(outcome.stderr.matches("decode: after ").count(), 1, "{outcome:?}");
}

#[test]
fn the_options_work_before_and_after_a_subcommand_and_exclude_each_other() {
    let scratch = Scratch::outside_checkout();
    let manifest =
        format!("about = \"x\"\nbinary = \"toy-engine\"\n[build]\n{}", build_command("toy-engine"));
    scratch.write_tree(&[("toy", &manifest)]);
    let run = |words: &[&str]| finish(scratch.orchestrate_without_checkout().args(words));
    for words in [["-q", "setup", "toy"], ["setup", "toy", "--quiet"], ["setup", "-q", "toy"]] {
        let quiet = run(&words).exits_with(0);
        assert_eq!((quiet.stdout.as_str(), quiet.stderr.as_str()), ("`toy` is ready\n", ""), "{words:?}");
    }
    run(&["--verbose", "setup", "toy"])
        .exits_with(0)
        .assert_stderr(&["  toy: sh -c 'mkdir -p target/release"]);
    run(&["-v", "model", "list"]).exits_with(0);
    run(&["-q", "-v", "engines"]).exits_with(2).assert_stderr(&["cannot be used with"]);
    // Another option of a run is refused before a subcommand, as it would have no effect.
    run(&["--quick", "engines"]).exits_with(2).assert_stderr(&["`engines` cannot be used with `--quick`"]);
}

/// Warnings, failures and the path of the record come in the progress and in the report. A log that has both has them once.
#[test]
fn a_log_of_stdout_and_stderr_has_each_warning_and_the_path_of_the_record_once() {
    let scratch = Scratch::new();
    let run = |options: &str, log: &str| {
        let program = env!("CARGO_BIN_EXE_orchestrate");
        let (sound, faulty) = (scratch.engine("sound", ""), scratch.script("ends-early", "exit 3"));
        let engines = format!("-e '{}' -e '{}'", sound.display(), faulty.display());
        let options = format!("{options} -s decode --depth 0 --blocks 1 --iterations 2 --nonce 5");
        let results = scratch.results();
        let line = format!("'{program}' {engines} {options} --results '{}' {log}", results.display());
        let outcome = finish(scratch.command("sh").args(["-c", &line])).exits_with(4);
        let text = without_line_breaks(&format!("{}{}", outcome.stdout, outcome.stderr));
        let count = |words: &str| text.matches(words).count();
        let warnings = count("the prompts are those of every run with the nonce 5");
        let of_record = ["record: ", "recorded in ", "in full: "].map(count);
        [warnings, count("exited at hello"), of_record.iter().sum()]
    };
    assert_eq!((run("", "2>&1"), run("", "")), ([1, 1, 1], [2, 2, 3]));
    for options in ["-v", "--format markdown"] {
        assert_eq!(run(options, "2>&1")[..2], [1, 1], "{options}");
    }
}

#[test]
fn a_warning_names_its_engine_and_a_twin_does_not_repeat_it() {
    let scratch = Scratch::new();
    let mut command = scratch.orchestrate();
    command.args(DECODE).args(["--blocks", "5", "--iterations", "1", "--warmup", "1", "--format", "json"]);
    for (name, fault) in [("leaves", "--fault leaves_grandchild"), ("other", "")] {
        command.arg("-e").arg(scratch.engine(name, fault));
    }
    let outcome = finish(command.arg("--results").arg(scratch.results())).exits_with(0);
    outcome.assert_stderr(&["warning: leaves: left processes behind: "]);
    let warnings = outcome.json()["warnings"].as_array().unwrap().clone();
    let is_about = |words: &str| warnings.iter().filter(|it| it.as_str().unwrap().contains(words)).count();
    assert!(is_about("leaves: left processes behind") > 0 && is_about("twin") == 0, "{warnings:?}");
}
