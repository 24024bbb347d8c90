//! Tests of names on the command line: lists, and the hint after a name that does not exist.

use crate::support::record::Record;
use crate::support::{DECODE, Outcome, Scratch, copy_program, fake_engine, finish, root};

/// Runs the orchestrator in the root of the tree; it must refuse.
fn refused(arguments: &[&str]) -> Outcome {
    finish(Scratch::new().orchestrate().args(arguments).current_dir(root())).exits_with(2)
}

/// A tree with one engine, which is not built.
fn tree() -> Scratch {
    let scratch = Scratch::outside_checkout();
    let presets = "[presets.default]\nabout = \"x\"\n[presets.eight-bits]\nabout = \"x\"\n";
    scratch.write_tree(&[("beacon", &format!("about = \"x\"\nbinary = \"beacon-engine\"\n{presets}"))]);
    scratch
}

#[test]
fn the_hint_after_a_mistyped_name_is_the_command_with_the_right_name() {
    let scratch = tree();
    let cases: &[(&[&str], &str, &str)] = &[
        (&["-e", "baecon"], "no engine named `baecon`", "-e beacon"),
        (&["-e", "sh,BEACON:eight-bits"], "no engine named `BEACON`", "-e sh,beacon:eight-bits"),
        (&["setup", "becon"], "no engine named `becon`", "setup beacon"),
        (&["setup", "beacon", "becon"], "no engine named `becon`", "setup beacon beacon"),
        (&["check", "beacn"], "no engine named `beacn`", "check beacon"),
        (&["-e", "beacon:eigth-bits"], "no preset of `beacon` named `eigth-bits`", "-e beacon:eight-bits"),
        (
            &["-e", "sh", "--reference=beacom"],
            "--reference: no engine named `beacom`",
            "-e sh --reference=beacon",
        ),
        (
            &["-e", "sh", "--verifier", "beaco"],
            "--verifier: no engine named `beaco`",
            "-e sh --verifier beacon",
        ),
        (&["-e", "sh", "-s", "load,decoed"], "no scenario or suite named `decoed`", "-e sh -s load,decode"),
        (&["-e", "sh", "-s", "defualt"], "no scenario or suite named `defualt`", "-e sh -s default"),
        (
            &["-e", "sh", "--sort", "deocde"],
            "--sort: no workload or metric named `deocde`",
            "-e sh --sort decode",
        ),
        (
            &["report", "x", "--sort", "decode_rat"],
            "--sort: no workload or metric named `decode_rat`",
            "report x --sort decode_rate",
        ),
        (
            &["report", "x", "--sort", "itll"],
            "--sort: no workload or metric named `itll`",
            "report x --sort itl",
        ),
        (&["metrics", "itll"], "no metric named `itll`", "metrics itl"),
        (&["metrics", "load,decode-rate"], "no metric named `decode-rate`", "metrics load,decode_rate"),
        (&["model", "info", "llama-3-7b"], "no model and no shape named `llama-3-7b`", "model list"),
        (&["model", "info", "llama3-8b"], "no model at `llama3-8b`", "model info llama-3-8b"),
        (&["request", "sh", "tttf"], "no scenario or suite named `tttf`", "request sh ttft"),
        (
            &["model", "synth", "tiny-lama", "--out", "x"],
            "no shape named `tiny-lama`",
            "model synth tiny-llama --out x",
        ),
        (
            &["model", "synth", "gpt2", "--dtype", "fp16", "--out", "x"],
            "no dtype named `fp16`",
            "model synth gpt2 --dtype f16 --out x",
        ),
        (
            &["model", "convert", "embedded", "--to", "ggfu"],
            "no format named `ggfu`",
            "model convert embedded --to gguf",
        ),
    ];
    for (words, message, hint) in cases {
        let outcome = finish(scratch.orchestrate_without_checkout().args(*words)).exits_with(2);
        let mut lines = outcome.stderr.lines();
        assert_eq!(lines.next(), Some(format!("error: {message}").as_str()), "{outcome:?}");
        let found = lines.next().and_then(|line| line.strip_prefix("hint: ./bin/orchestrate "));
        assert_eq!((found, lines.next()), (Some(*hint), None), "{outcome:?}");
    }
}

#[test]
fn without_a_similar_name_the_hint_lists_the_known_ones() {
    let scratch = tree();
    let outcome =
        finish(scratch.orchestrate_without_checkout().args(["setup", "steam-engine"])).exits_with(2);
    outcome.assert_stderr(&["no engine named `steam-engine`\nhint: the only one is `beacon`"]);
    // `llama-` begins the names of several shapes, and a wrong guess would be another model.
    refused(&["model", "synth", "llama-", "--out", "x"])
        .assert_stderr(&["hint: choose one of `", "`llama-2-7b`"]);
}

#[test]
fn a_mistyped_record_has_the_hint_with_a_record_of_its_folder() {
    let outcome = finish(
        Scratch::new().orchestrate().args(["report", "tests/snapshots/recrod.jsonl"]).current_dir(root()),
    );
    outcome.assert_stderr(&[
        "cannot open the run record `tests/snapshots/recrod.jsonl`",
        "report tests/snapshots/record.jsonl",
    ]);
    assert_eq!(outcome.stderr.lines().count(), 2, "{outcome:?}");
}

#[test]
fn mistyped_subcommands_flags_and_formats_have_hints_too() {
    refused(&["calibarte"]).assert_stderr(&["a similar subcommand exists: 'calibrate'"]);
    refused(&["model", "sinth"]).assert_stderr(&["a similar subcommand exists: 'synth'"]);
    refused(&["--enigne", "x"]).assert_stderr(&["a similar argument exists: '--engine'"]);
    refused(&["-e", "sh", "--format", "tabel"]).assert_stderr(&["a similar value exists: 'table'"]);
}

/// The labels of the measured rows.
fn labels(scratch: &Scratch, engines: &[&str]) -> Vec<String> {
    let mut command = scratch.orchestrate();
    command
        .args(DECODE)
        .args(["--blocks", "1", "--iterations", "1", "--json", "-"])
        .current_dir(&scratch.path);
    for engine in engines {
        command.args(["-e", engine]);
    }
    finish(command.arg("--results").arg(scratch.results())).exits_with(0);
    let record = Record::only_one_in(&scratch.results());
    let rows = record.entries("header")[0]["plan"]["configurations"].as_array().unwrap().clone();
    rows.iter().map(|row| row["label"].as_str().unwrap().to_string()).collect()
}

#[test]
fn engines_may_be_separated_by_commas_and_a_path_with_a_comma_stays_whole() {
    let scratch = Scratch::new();
    for name in ["one", "other", "with,comma"] {
        copy_program(fake_engine(), &scratch.join(name));
    }
    assert_eq!(labels(&scratch, &["./one,./other", "./with,comma"]), ["one", "other", "with,comma"]);
}

#[test]
fn an_engine_in_place_of_a_subcommand_and_an_option_without_its_value_have_a_hint() {
    let scratch = tree();
    let hint = |words: &[&str]| {
        let outcome = finish(scratch.orchestrate_without_checkout().args(words)).exits_with(2);
        outcome.stderr.lines().last().unwrap_or_default().to_string()
    };
    assert_eq!(hint(&["beacon", "-s", "decode"]), "hint: ./bin/orchestrate -e beacon -s decode");
    // No command of a similar name is suggested.
    let outcome = finish(scratch.orchestrate_without_checkout().arg("beacon")).exits_with(2);
    let text = "error: `beacon` is an engine, not a command\nhint: ./bin/orchestrate -e beacon\n";
    assert_eq!(outcome.stderr, text);
    assert_eq!(hint(&["--all", "beacon"]), "hint: ./bin/orchestrate -e beacon");
    assert_eq!(hint(&["setup", "--remove"]), "hint: ./bin/orchestrate setup --list");
    assert_eq!(hint(&["no-such-word"]), "hint: ./bin/orchestrate -h");
    assert_eq!(hint(&["-s"]), "hint: ./bin/orchestrate scenarios");
    assert_eq!(hint(&["-e"]), "hint: ./bin/orchestrate engines");
    assert_eq!(hint(&["-m"]), "hint: ./bin/orchestrate model list");
    assert_eq!(hint(&["setup"]), "hint: ./bin/orchestrate setup --list");
}

#[test]
fn a_file_of_the_current_folder_in_place_of_an_engine_has_the_whole_command_as_its_hint() {
    let scratch = tree();
    std::fs::write(scratch.join("w.py"), "#!/bin/sh\n").unwrap();
    let check = || {
        let mut command = scratch.orchestrate_without_checkout();
        finish(command.args(["check", "w.py"]).current_dir(&scratch.path))
    };
    check().assert_stderr(&[
        "no engine named `w.py`, and the file of this name is not executable\nhint: chmod +x w.py\n",
    ]);
    crate::support::write_program(&scratch.join("w.py"), "#!/bin/sh\n");
    check().assert_stderr(&["no such program on PATH\nhint: ./bin/orchestrate check ./w.py\n"]);
}
