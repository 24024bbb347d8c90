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
        (&["metrics", "itl_p99"], "no metric named `itl_p99`", "metrics itl"),
        (
            &["report", "x", "--sort", "itl_p9"],
            "--sort: no workload or metric named `itl_p9`",
            "report x --sort itl",
        ),
        (&["-e", "sh", "-s", "decoed=3"], "no scenario or suite named `decoed=3`", "-e sh -s decode"),
        (&["metrics", "load,decode-rate"], "no metric named `decode-rate`", "metrics load,decode_rate"),
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
    // The nearest names are several.
    refused(&["model", "info", "llama-3-7b"]).assert_stderr(&[
        "no model at `llama-3-7b`\nhint: did you mean `llama-2-7b`, `llama-3-70b` or `llama-3-8b`?\n",
    ]);
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
fn a_command_line_that_cannot_be_parsed_has_an_error_and_a_hint_of_the_usual_form() {
    let scratch = tree();
    std::fs::write(scratch.join("chat.toml"), "scenario = \"decode\"\n").unwrap();
    let cases: &[(&[&str], &str, &str)] = &[
        (&["calibarte"], "no command named `calibarte`", "orchestrate calibrate"),
        (&["frobnicate"], "no command named `frobnicate`", "orchestrate -h"),
        (&["model", "sinth"], "no command named `sinth`", "orchestrate model synth"),
        (&["--enigne", "x"], "no option named `--enigne`", "orchestrate --engine x"),
        (&["-e", "sh", "--budgt=3s"], "no option named `--budgt`", "orchestrate -e sh --budget=3s"),
        (&["-e", "sh", "--xyz"], "no option named `--xyz`", "orchestrate --help"),
        (&["engines", "all"], "unexpected word `all`", "orchestrate engines --help"),
        (&["check", "-e", "beacon"], "no option named `-e`", "orchestrate check beacon"),
        (&["report", "a", "b"], "unexpected word `b`", "orchestrate compare a b"),
        (
            &["--all", "decode"],
            "`decode` is a scenario or a suite, not a command",
            "orchestrate --all -s decode",
        ),
        (
            &["-e", "sh", "--format", "tabel"],
            "--format: no value named `tabel`",
            "orchestrate -e sh --format table",
        ),
        (&["completions", "tcsh"], "<SHELL>: no value named `tcsh`", "choose one of `bash`, `zsh`, `fish`"),
        (
            &["-e", "sh", "--budget", "1e99s"],
            "--budget 1e99s: expected a time, as in `90s` or `5m`",
            "orchestrate -e sh --budget 90s",
        ),
        (
            &["-e", "sh", "--timeout", "fast"],
            "--timeout fast: expected a time of at least 1 second, as in `2m`",
            "orchestrate -e sh --timeout 2m",
        ),
        (
            &["-e", "sh", "--seed", "-1"],
            "--seed -1: expected a whole number, at least 0",
            "orchestrate -e sh --seed 0",
        ),
        (
            &["-e", "sh", "--threads", "2,9999"],
            "--threads 9999: expected a whole number from 1 to 4096",
            "orchestrate -e sh --threads 2,4096",
        ),
        (&["-e", "sh", "-s"], "--scenario: the value is missing", "orchestrate scenarios"),
        (&["check"], "missing: <NAME|PATH>", "orchestrate engines"),
        (
            &["-e", "sh", "--seed", "1", "--seed", "2"],
            "`--seed` can be given only once",
            "leave out one `--seed`",
        ),
        (
            &["setup", "--list", "--remove", "x"],
            "`--list` cannot be used with `--remove`",
            "orchestrate setup --list x\nhint: ./bin/orchestrate setup --remove x",
        ),
        (
            &["-e", "sh", "-q", "-v"],
            "`--quiet` cannot be used with `--verbose`",
            "orchestrate -e sh -q\nhint: ./bin/orchestrate -e sh -v",
        ),
        (
            &["report", "x", "--list"],
            "`[RECORD]` cannot be used with `--list`",
            "orchestrate report x\nhint: ./bin/orchestrate report --list",
        ),
        (&["--quick", "engines"], "`engines` cannot be used with `--quick`", "leave out `--quick`"),
        (
            &["-e", "sh", "--quick", "--blocks=7"],
            "`--quick` cannot be used with `--blocks`",
            "orchestrate -e sh --quick\nhint: ./bin/orchestrate -e sh --blocks=7",
        ),
        (
            &["-e", "sh", "-s", "perplexity", "--text", "./caht.toml"],
            "--text ./caht.toml: No such file or directory (os error 2)",
            "orchestrate -e sh -s perplexity --text ./chat.toml",
        ),
        (
            &["-e", "sh", "-s", "perplexity", "--text", "/no-such-file"],
            "--text /no-such-file: No such file or directory (os error 2)",
            "orchestrate -e sh -s perplexity --text FILE",
        ),
        (
            &["-e", "sh", "-s", "serve", "--trace", "chat.toml"],
            "--trace chat.toml: the trace has no requests: \
             expected a time, the tokens of the prompt and the new tokens, as in `0.25,120,64`",
            "orchestrate -e sh -s serve --trace FILE",
        ),
        (
            &["-e", "sh", "-s", "serve", "--lengths", "chat.toml"],
            "--lengths chat.toml: line 1: expected columns `prompt_tokens` and `new_tokens` in the heading",
            "orchestrate -e sh -s serve --lengths FILE",
        ),
        (
            &["-e", "sh", "-s", "serve", "--request-rate", "fast"],
            "--request-rate fast: expected requests per second from 0.001 to 1,000,000, as in `2.5`, or `highest`",
            "orchestrate -e sh -s serve --request-rate 2.5",
        ),
        (
            &["-e", "sh", "-s", "serve", "--slo", "ttft=fast"],
            "--slo ttft=fast: expected limits as in `ttft=500ms,itl=50ms`; the names are ttft, itl, tpot, total",
            "orchestrate -e sh -s serve --slo ttft=500ms,itl=50ms",
        ),
        (
            &["-e", "sh", "--verifier", "nope"],
            "--verifier: no engine named `nope`",
            "the only one is `beacon`; a program's path works too",
        ),
        (
            &["check", "chat.toml"],
            "no engine named `chat.toml`, and the file of this name is not a program",
            "orchestrate engines",
        ),
        (
            &["report", "x", "--sort", "foo"],
            "--sort: no workload or metric named `foo`",
            "--sort engine, a workload of the report or a metric of `./bin/orchestrate metrics`",
        ),
        (
            &["report", "x", "--sort", "mem"],
            "--sort: no workload or metric named `mem`",
            "orchestrate report x --sort 'peak mem'",
        ),
        (
            &["report", "x", "--sort", "decode", "--format", "csv"],
            "--sort: it orders the one screen, and csv has the order of the plan",
            "orchestrate report x --format csv",
        ),
        (
            &["--format", "json", "report"],
            "`report` cannot be used with `--format`",
            "orchestrate report --format json",
        ),
        (&["chat.toml"], "`chat.toml` is a run file, not a command", "orchestrate run chat.toml"),
        (
            &["run", "chta.toml"],
            "cannot read the run file `chta.toml`: No such file or directory (os error 2)",
            "orchestrate run chat.toml",
        ),
        (
            &["run", "beacon"],
            "cannot read the run file `beacon`: No such file or directory (os error 2)",
            "orchestrate run -e beacon",
        ),
        (
            &["check", "./bin"],
            "`./bin` is a folder, and an engine is a program",
            "orchestrate check ./bin/PROGRAM",
        ),
        (
            &["check", "./engines/beacon"],
            "`./engines/beacon` is a folder, and an engine is a program",
            "orchestrate check beacon",
        ),
        (
            &["check", "./bin/orchestrat"],
            "no engine at `./bin/orchestrat`",
            "orchestrate check ./bin/orchestrate",
        ),
    ];
    for (words, message, hint) in cases {
        let mut command = scratch.orchestrate_without_checkout();
        let outcome = finish(command.args(*words).current_dir(&scratch.path));
        let hint =
            hint.replacen("orchestrate", "./bin/orchestrate", usize::from(hint.starts_with("orchestrate")));
        assert_eq!(outcome.stderr, format!("error: {message}\nhint: {hint}\n"), "{words:?}");
    }
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
