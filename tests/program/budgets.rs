//! The time budget of a run: the dry run, the warning before the run, and the budget that the run proposes at its end.

use crate::support::record::Record;
use crate::support::{DECODE, Outcome, Scratch, finish, without_line_breaks};

/// A verifier that takes four seconds to load. A run starts it before the first block, and again after the last one.
const SLOW_VERIFIER: &str = "--load-ns 4000000000";

/// Measures one engine in one block. A slow verifier checks its output.
fn measure(scratch: &Scratch, options: &[&str]) -> Outcome {
    let mut command = scratch.orchestrate();
    command.env_remove("ORCHESTRATE_VERIFIER").args(DECODE).args(["--iterations", "1", "--warmup", "1"]);
    command.arg("-e").arg(scratch.engine("one", ""));
    command.arg("--verifier").arg(scratch.engine("verifier", SLOW_VERIFIER));
    finish(command.args(options).arg("--results").arg(scratch.results()))
}

/// The budget that follows these words.
fn budget_after<'a>(text: &'a str, words: &str) -> &'a str {
    let (_, rest) = text.split_once(words).unwrap_or_else(|| panic!("no {words:?} in {text}"));
    rest.split(|it: char| !it.is_ascii_alphanumeric()).next().unwrap()
}

#[test]
fn the_budget_that_a_run_proposes_is_enough_for_its_output_checks() {
    let scratch = Scratch::new();
    // No earlier record says how slow the verifier is.
    let short = measure(&scratch, &["--blocks", "1", "--budget", "5s"]).stdout;
    let not_checked = |record: &Record| record.entries("not_checked").len();
    assert!(not_checked(&Record::only_one_in(&scratch.results())) > 0, "{short}");
    let proposed = budget_after(&short, "--budget ").to_string();
    std::fs::remove_dir_all(scratch.results()).unwrap();
    let enough = measure(&scratch, &["--blocks", "1", "--budget", &proposed]).exits_with(0);
    assert_eq!(not_checked(&Record::only_one_in(&scratch.results())), 0, "{proposed}: {enough:?}");
}

#[test]
fn a_budget_without_time_for_the_output_checks_is_named_before_the_run_with_a_sufficient_one() {
    let scratch = Scratch::new();
    measure(&scratch, &["--blocks", "1"]).exits_with(0);
    let options = ["--blocks", "1", "--budget", "9s"];
    let dry = measure(&scratch, &[&options[..], &["--dry-run"]].concat()).exits_with(0).stdout;
    assert!(
        without_line_breaks(&dry)
            .contains("--budget 9s is too short for the output checks; the proposed budget has a reserve"),
        "{dry}"
    );
    for part in [
        "  output checks: about ",
        "  blocks: ",
        "  check of the measured tokens after the last block: about ",
    ] {
        assert!(dry.contains(part), "no {part:?} in {dry}");
    }
    let run = measure(&scratch, &options).stderr;
    let warning = "warning: --budget 9s is too short for the output checks, by the times of earlier runs on this machine; hint: ";
    let hint = &run[run.find(warning).unwrap()..];
    let proposed = budget_after(hint, " --blocks 1 --budget ");
    assert_eq!(proposed, budget_after(&dry[dry.find("\nhint: ").unwrap()..], " --blocks 1 --budget "));
    assert!(run.find("\nblock 1 of 1").is_some_and(|block| run.find(warning).unwrap() < block), "{run}");
    let enough = [&options[..3], &[proposed]].concat();
    let dry = measure(&scratch, &[&enough[..], &["--dry-run"]].concat()).exits_with(0).stdout;
    assert!(dry.contains(": about 1 block fits"), "{dry}");
    let run = measure(&scratch, &enough).exits_with(0).stderr;
    assert!(!run.contains("is too short"), "{run}");
}

#[test]
fn a_dry_run_promises_no_blocks_if_the_time_of_an_engine_is_unknown() {
    let scratch = Scratch::new();
    let known = scratch.engine("known", "");
    let command = |options: &[&str]| {
        let mut command = scratch.orchestrate();
        command.args(DECODE).args(["--iterations", "1", "--warmup", "1", "-e"]).arg(&known).args(options);
        finish(command.arg("--results").arg(scratch.results())).exits_with(0).stdout
    };
    command(&["--blocks", "1"]);
    let known_alone = command(&["--dry-run"]);
    assert!(known_alone.contains("the default time budget is 3 min: about 20 blocks fit"), "{known_alone}");
    let others = ["first", "second"].map(|name| scratch.engine(name, ""));
    let [first, second] = others.each_ref().map(|path| path.to_str().unwrap());
    let dry = without_line_breaks(&command(&["-e", first, "-e", second, "--dry-run"]));
    for text in [
        "expected times, from earlier runs on this machine: ",
        " each for 1 of 3 configurations",
        "no estimate for `first`, `second`: no earlier run in the folder of records",
        "the default time budget is 3 min; the first block shows how many blocks fit",
    ] {
        assert!(dry.contains(text), "no {text:?} in {dry}");
    }
    assert!(!dry.contains("first results after") && !dry.contains(" blocks fit about"), "{dry}");
}

#[test]
fn a_quick_run_and_its_dry_run_say_that_there_is_no_time_budget() {
    let scratch = Scratch::new();
    let engine = scratch.engine("one", "");
    let run = |options: &[&str]| {
        let mut command = scratch.orchestrate();
        command.args(DECODE).args(["--iterations", "1", "--warmup", "1", "-e"]).arg(&engine).args(options);
        finish(command.arg("--results").arg(scratch.results())).exits_with(0)
    };
    let none = "no time budget, because the number of blocks is set: 1 block with all rounds, however long";
    let dry = without_line_breaks(&run(&["--quick", "--dry-run"]).stdout);
    assert!(dry.contains(none), "{dry}");
    run(&["--quick"]).assert_stderr(&["measuring 1 configuration in 1 block; no time budget\n"]);
    let limited = run(&["--quick", "--budget", "1m"]);
    limited.assert_stderr(&["measuring 1 configuration in 1 block; time budget 1 min\n"]);
}
