//! The exit codes that `orchestrate --help` documents, each from a command that returns it.

use std::collections::BTreeSet;

use rustix::process::Signal;

use crate::support::baselines::{COMPARE, command, engine, run, unsteady_engine, with_saved_baseline};
use crate::support::{Running, Scratch, finish};

#[test]
fn every_documented_exit_code_is_returned_by_its_command() {
    let (scratch, same, _) = with_saved_baseline();
    let code_of = |words: &[&str]| finish(scratch.orchestrate().args(words).current_dir(&scratch.path)).code;
    let compared = |engine| run(&scratch, engine, COMPARE).code;
    let returned = [
        (0, compared(&same)),
        (1, compared(&engine(&scratch, "engine", 3000))),
        (2, code_of(&["-e", "no-such-engine"])),
        (3, compared(&unsteady_engine(&scratch, "engine", &[1000, 3000, 1500, 4000, 2000]))),
        (4, run(&scratch, &scratch.faulty("fails_in_load", &[]), &[]).code),
        (5, code_of(&["report", "no/such/record.jsonl"])),
        (130, interrupted(&scratch)),
    ];
    for (expected, code) in returned {
        assert_eq!(code, Some(expected));
    }
    let help = printed_help(&scratch);
    let codes = help.split("Exit codes:\n").nth(1).unwrap().lines();
    let documented: BTreeSet<i32> =
        codes.filter_map(|line| line.strip_prefix("  ")?.split(' ').next()?.parse().ok()).collect();
    assert_eq!(documented, returned.map(|(code, _)| code).into());
}

fn printed_help(scratch: &Scratch) -> String {
    finish(scratch.orchestrate().arg("--help")).exits_with(0).stdout
}

fn interrupted(scratch: &Scratch) -> Option<i32> {
    let hanging = scratch.faulty("hangs_in_generate", &[]);
    let mut running = Running::start(command(scratch, &hanging, &["--debug"]).args(["--verifier", "none"]));
    running.wait_for("fake: hangs in generate");
    running.signal(Signal::TERM);
    running.finish().code
}
