//! Values on the command line that engines do not accept. If no engine accepts a value, it is refused before anything is built or
//! loaded, and a dry run has the same error. Only a program without a manifest is started, to ask for its values. If some
//! engines accept a value, the others are rows with the reason.

use crate::support::record::{Record, files};
use crate::support::{
    Outcome, Scratch, build_command, driver, fake_engine, finish, root, without_line_breaks,
};

/// A tree of two engines, `narrow` and `wide`, whose `load` accepts different values. Both have a program that can be built.
fn tree() -> Scratch {
    let scratch = Scratch::outside_checkout();
    let manifest = |name: &str, devices: &str, dtypes: &str, options: &str, rest: &str| {
        let program = format!("{name}-engine");
        let build = build_command(&program);
        format!(
            "about = \"an engine\"\nbinary = \"{program}\"\n[build]\n{build}\
             [load]\ndevices = [{devices}]\ndtypes = [{dtypes}]\noptions = {{ {options} }}\n{rest}"
        )
    };
    let narrow = "[presets.late]\nabout = \"takes its time\"\noptions = { per_token_ns = 9000 }\n\
                  [quantize]\nint8 = { preset = \"late\" }\n";
    let wide = "[presets.small]\nabout = \"16 bits\"\ndtype = \"bf16\"\n[quantize]\nbfloat16 = { dtype = \"bf16\" }\n";
    scratch.write_tree(&[
        (
            "narrow",
            &manifest("narrow", "\"cpu\"", "\"f32\"", "per_token_ns = { min = 1, max = 60000 }", narrow),
        ),
        (
            "wide",
            &manifest("wide", "\"cpu\", \"cuda\"", "\"f32\", \"bf16\"", "first_token_ns = \"any\"", wide),
        ),
    ]);
    scratch
}

const SHORT: &[&str] = &["--blocks", "1", "--iterations", "1", "--warmup", "1"];

fn run(scratch: &Scratch, arguments: &[&str]) -> Outcome {
    let mut command = scratch.orchestrate_without_checkout();
    command.args(arguments).args(SHORT).arg("--results").arg(scratch.results());
    finish(command.arg("-m").arg(root().join("models/embedded")))
}

fn measure(scratch: &Scratch, arguments: &[&str]) -> (Outcome, Record) {
    let outcome = run(scratch, &[&["-s", "decode", "--depth", "0"], arguments].concat());
    (outcome, Record::only_one_in(&scratch.results()))
}

/// Asserts that the run and its dry run end with this error, that nothing was built and that there is no record. A hint repeats the
/// command line: `[RUN]` is the program, and `[REST]` the words after these arguments.
#[track_caller]
fn assert_refused(scratch: &Scratch, arguments: &[&str], expected: &str) {
    for mode in [&[][..], &["--dry-run"]] {
        let (results, model) = (scratch.results(), root().join("models/embedded"));
        let folders = format!("--results {} -m {}", results.display(), model.display());
        let rest = [mode, SHORT, &[&folders]].concat().join(" ");
        let expected = &*expected.replace("[RUN]", "./bin/orchestrate").replace("[REST]", &rest);
        let outcome = run(scratch, &[arguments, mode].concat());
        assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(2), expected), "{arguments:?} {mode:?}");
    }
    assert!(!scratch.join("target").exists() && !scratch.results().exists(), "{arguments:?}");
    scratch.assert_no_processes_left();
}

#[test]
fn a_value_that_no_engine_accepts_is_refused_before_a_build() {
    let scratch = tree();
    let both = ["-e", "narrow", "-e", "wide"];
    for (engines, value, expected) in [
        (
            &both[..2],
            ["--device", "cuda"],
            "`narrow` has no device `cuda`\nhint: [RUN] -e narrow --device cpu [REST]",
        ),
        (
            &both,
            ["--device", "gpu"],
            "none of the selected engines has the device `gpu`\nhint: [RUN] -e narrow -e wide --device cuda [REST]",
        ),
        (
            &both,
            ["--device", "cpu,cdua"],
            "none of the selected engines has the device `cdua`\nhint: [RUN] -e narrow -e wide --device cpu,cuda [REST]",
        ),
        (
            &both,
            ["--dtype", "f17"],
            "none of the selected engines has the dtype `f17`\nhint: `--dtype` takes `f32` or `bf16`",
        ),
        (
            &both,
            ["--dtype", "bfloat16"],
            "none of the selected engines has the dtype `bfloat16`\nhint: [RUN] -e narrow -e wide --dtype bf16 [REST]",
        ),
        (
            &both,
            ["--set", "pim=1"],
            "none of the selected engines has the load option `pim`\nhint: `--set` takes `per_token_ns` or `first_token_ns`",
        ),
        (
            &both[..2],
            ["--set", "per_token_ns=fast"],
            "`narrow` has no value `fast` of the load option `per_token_ns`\n\
             hint: [RUN] -e narrow --set per_token_ns=VALUE [REST] # VALUE is a whole number from 1 to 60000",
        ),
        (
            &both,
            ["--set", "per_token_ns=0"],
            "none of the selected engines has the value `0` of the load option `per_token_ns`\n\
             hint: [RUN] -e narrow -e wide --set per_token_ns=VALUE [REST] # VALUE is a whole number from 1 to 60000",
        ),
    ] {
        assert_refused(&scratch, &[engines, &value].concat(), &format!("error: {expected}\n"));
    }
}

#[test]
fn a_preset_and_an_option_that_contradict_each_other_are_refused() {
    let scratch = tree();
    for (engine, value, expected) in [
        (
            "wide:small",
            ["--dtype", "f32"],
            "the preset of `wide:small` has the dtype `bf16`, and the command line names the dtype `f32`\n\
             hint: [RUN] -e wide --dtype f32 [REST]",
        ),
        (
            "narrow:late",
            ["--set", "per_token_ns=1"],
            "the preset of `narrow:late` has the value `9000` of the load option `per_token_ns`, and the command line names the \
             value `1` of the load option `per_token_ns`\n\
             hint: [RUN] -e narrow --set per_token_ns=1 [REST]",
        ),
    ] {
        assert_refused(&scratch, &[&["-e", engine], &value[..]].concat(), &format!("error: {expected}\n"));
    }
    // The same value is no contradiction, and another row can have the other value.
    for same in [["-e", "wide:small", "--dtype", "bf16"], ["-e", "narrow:late", "--set", "per_token_ns=9000"]]
    {
        run(&scratch, &[&same[..], &["--dry-run"]].concat()).exits_with(0);
    }
    let both =
        run(&scratch, &["-e", "wide", "-e", "wide:small", "--dtype", "f32", "--dry-run"]).exits_with(0);
    let row = "wide:small on embedded in f32 (unsupported: its preset has the dtype `bf16`)";
    assert!(without_line_breaks(&both.stdout).contains(row), "{both:?}");
}

#[test]
fn an_engine_that_needs_an_option_is_measured_and_checked_only_with_it() {
    let scratch = tree();
    let build = build_command("client-engine");
    let client = format!(
        "about = \"an engine\"\nbinary = \"client-engine\"\n[build]\n{build}\
         [load]\ndevices = [\"cpu\"]\nneeds_one_of = [\"url\", \"command\"]\n\
         options = {{ url = \"url\", command = \"any\" }}\n"
    );
    scratch.write_tree(&[("client", &client)]);
    let reason = "it needs `--set url=...` or `--set command=...`";
    let planned = |more: &[&str]| {
        let outcome = run(&scratch, &[&["-e", "client", "--dry-run"], more].concat());
        without_line_breaks(&outcome.stdout).contains(reason)
    };
    assert!(planned(&[]));
    run(&scratch, &["-e", "client", "--dry-run"]).exits_with(4);
    assert!(!planned(&["--set", "url=http://127.0.0.1:1"]) && !planned(&["--set", "command=serve"]));
    let no_address = run(&scratch, &["-e", "client", "--set", "url=foo", "--dry-run"]).exits_with(2);
    let problem = "error: `client` has no value `foo` of the load option `url`\nhint: ";
    no_address.assert_stderr(&[problem, "--set url=VALUE"]);
    let checked = finish(scratch.orchestrate_without_checkout().args(["check", "client"])).exits_with(4);
    checked.assert_stderr(&["engine `client` cannot run here: ", reason]);
    let on_gpu = &["check", "client", "--device", "cuda", "--set", "command=serve"];
    let checked = finish(scratch.orchestrate_without_checkout().args(on_gpu)).exits_with(4);
    checked.assert_stderr(&["engine `client` cannot run here: no device `cuda`; it has `cpu`"]);
    // `--all` leaves it out.
    let all = run(&scratch, &["--all", "--dry-run"]).exits_with(0);
    assert!(all.stdout.contains("narrow") && !all.stdout.contains("client"), "{all:?}");
}

#[test]
fn an_engine_that_needs_an_option_is_not_checked_without_a_load() {
    let scratch = tree();
    let build = build_command("late-engine");
    let late = format!(
        "about = \"an engine\"\nbinary = \"late-engine\"\n[build]\n{build}\
         [load]\nneeds_one_of = [\"first_token_ns\"]\noptions = {{ first_token_ns = \"any\" }}\n"
    );
    scratch.write_tree(&[("late", &late)]);
    std::fs::create_dir_all(scratch.join("target/release")).unwrap();
    std::os::unix::fs::symlink(fake_engine(), scratch.join("target/release/late-engine")).unwrap();
    let mut check = scratch.orchestrate_without_checkout();
    let outcome = finish(check.args(["check", "late", "--set", "first_token_ns=1000"]));
    let text = without_line_breaks(&outcome.stdout);
    for name in ["load-by-generate", "one-shot"] {
        assert!(text.contains(&format!("absent {name} a load needs one of the engine's options")), "{text}");
    }
}

#[test]
fn one_shot_mode_with_a_temperature_is_refused_before_a_build() {
    let expected = "--mode one-shot sends no `hello`, so no engine can say that it supports `sampling`\n\
                    hint: [RUN] -e narrow --temperature 0.7 [REST]";
    let arguments = ["-e", "narrow", "--mode", "one-shot", "--temperature", "0.7"];
    assert_refused(&tree(), &arguments, &format!("error: {expected}\n"));
    // Some workloads of this selection need no `hello`, and the dry run names the others.
    let arguments = ["-e", "narrow", "--mode", "one-shot", "-s", "decode,batch", "--depth", "0", "--dry-run"];
    let mixed = run(&tree(), &arguments).exits_with(0);
    mixed.assert_stdout(&["  decode: 1 request in each block", "not measured in one-shot mode: batch "]);
}

#[test]
fn a_temperature_outside_its_range_is_refused() {
    for temperature in ["9e99", "nan", "inf", "-0.1"] {
        let outcome = run(&tree(), &["-e", "narrow", "--temperature", temperature]).exits_with(2);
        outcome.assert_stderr(&["expected a number from 0 to 100"]);
    }
}

#[test]
fn a_dry_run_counts_the_engines_that_the_run_sets_up_first() {
    let scratch = tree();
    let dry = run(&scratch, &["-e", "wide", "--dry-run"]).exits_with(0);
    dry.assert_stdout(&[
        "wide on embedded  (not built: the run sets it up first)",
        "no estimate for `wide`: no earlier run in the folder of records",
    ]);
    let ready_only = run(&scratch, &["-e", "wide", "--no-setup", "--dry-run"]).exits_with(0);
    ready_only.assert_stdout(&["wide on embedded  (not built)\n"]);
}

#[test]
fn an_engine_that_lacks_a_value_is_a_row_with_the_reason_and_the_others_are_measured() {
    for (value, reason) in [
        (["--dtype", "bf16"], "no dtype `bf16`; it has `f32`"),
        (["--set", "first_token_ns=30000"], "no load option `first_token_ns`; it has `per_token_ns`"),
    ] {
        let scratch = tree();
        let (outcome, record) = measure(&scratch, &[&["-e", "narrow", "-e", "wide"], &value[..]].concat());
        let failure = record.assert_failed("narrow", "unsupported", "start");
        assert_eq!(failure["message"], reason);
        // The first engine is not measured, so it is not the reference.
        assert_eq!((record.samples_of("wide").len(), outcome.code), (1, Some(4)), "{outcome:?}");
        assert!(!scratch.join("target/release/narrow-engine").exists());
        outcome.assert_stdout(&["unsupported", reason]);
    }
    // An engine that the user did not name may lack a value.
    let (outcome, record) = measure(&tree(), &["--all", "--dtype", "bf16"]);
    assert_eq!((record.samples_of("wide").len(), outcome.code), (1, Some(0)), "{outcome:?}");
    let dry = run(&tree(), &["--all", "--dtype", "bf16", "--dry-run"]).exits_with(0);
    dry.assert_stdout(&["narrow on embedded in bf16  (unsupported: no dtype `bf16`; it has `f32`)"]);
}

#[test]
fn without_a_manifest_settings_that_hello_does_not_list_are_refused_before_the_load() {
    let scratch = tree();
    let claims = "--capabilities '{\"options\":[\"per_token_ns\"],\"devices\":[\"cpu\"]}'";
    let engine = scratch.engine("own", &format!("--fault hangs_in_load {claims}"));
    let engine = engine.to_str().unwrap();
    let set = format!("`own` has no load option `pim`\nhint: [RUN] -e {engine} --set per_token_ns=1 [REST]");
    assert_refused(&scratch, &["-e", engine, "--set", "pim=1"], &format!("error: {set}\n"));
    let device = format!("`own` has no device `metal`\nhint: [RUN] -e {engine} --device cpu [REST]");
    assert_refused(&scratch, &["-e", engine, "--device", "metal"], &format!("error: {device}\n"));
    // A program that lists no dtypes may have any known one.
    let silent = scratch.engine("silent", "--capabilities '{\"dtypes\":[]}'");
    let dtype = run(&scratch, &["-e", silent.to_str().unwrap(), "--dtype", "f17"]).exits_with(2);
    dtype.assert_stderr(&["error: no dtype named `f17`\nhint: ", "--dtype f16"]);
    let minimal = scratch.engine("minimal", "--fault says_bad_request_to_hello");
    let minimal = minimal.to_str().unwrap();
    let set = format!(
        "`minimal` has no load option `pim`\nhint: [RUN] -e {minimal} [REST] # there are no load options"
    );
    assert_refused(&scratch, &["-e", minimal, "--set", "pim=1"], &format!("error: {set}\n"));
}

#[test]
fn a_program_that_lists_no_options_gets_every_option() {
    let scratch = tree();
    let engine = scratch.engine("own", "");
    let words =
        ["-e", engine.to_str().unwrap(), "--set", "pim=1", "-s", "decode", "--depth", "0", "--json", "-"];
    let outcome = run(&scratch, &words).exits_with(4);
    // Because of the option nothing was measured, so there is no record.
    let failure = &outcome.json()["failed"][0]["failure"];
    assert_eq!((&failure["kind"], &failure["when"]), (&"bad_request".into(), &"load".into()), "{outcome:?}");
    assert_eq!(failure["message"], "unknown option `pim`", "{outcome:?}");
    assert!(files(&scratch.results()).is_empty(), "{outcome:?}");
}

#[test]
fn more_threads_than_processors_are_refused_with_the_most_that_are_possible() {
    let processors = std::thread::available_parallelism().unwrap().get();
    let noun = if processors == 1 { "processor" } else { "processors" };
    let expected = format!(
        "error: --threads 4096: this program can use {processors} {noun}\n\
         hint: [RUN] -e narrow --threads 1,{processors} [REST]\n"
    );
    assert_refused(&tree(), &["-e", "narrow", "--threads", "1,4096"], &expected);
}

#[test]
fn a_reference_that_is_not_measured_is_refused() {
    let scratch = tree();
    let outcome = run(&scratch, &["-e", "narrow:late", "--reference", "wide"]).exits_with(2);
    // The hint keeps the engines of the command line.
    outcome.assert_stderr(&[
        "error: --reference: `wide` is not measured in this run, only `narrow:late`\n\
         hint: ./bin/orchestrate -e narrow:late --reference wide ",
        " -e wide\n",
    ]);
    assert!(!scratch.join("target").exists() && !scratch.results().exists(), "{outcome:?}");
    // The name of an engine means its only row.
    let (outcome, record) = measure(&scratch, &["-e", "narrow:late", "-e", "wide", "--reference", "narrow"]);
    assert_eq!((outcome.code, record.samples_of("wide").len()), (Some(0), 1), "{outcome:?}");
    assert_eq!(record.header()["plan"]["reference"], "narrow:late");
}

// Token counts.

#[test]
fn requests_beyond_the_context_of_the_model_are_refused() {
    let scratch = tree();
    for (arguments, requests, hint) in [
        (
            &["-s", "decode,depth"][..],
            "`depth`: 8,224 prompt tokens and 64 new tokens exceed the context of 2,048",
            "[RUN] scenarios # for another scenario; or another model with `-m`",
        ),
        (
            &["-s", "decode", "--depth", "99999"],
            "`decode depth 99999`: 100,031 prompt tokens and 64 new tokens exceed the context of 2,048",
            "[RUN] -e narrow -s decode --depth 1952 [REST]",
        ),
        (
            &["-s", "decode", "--depth", "0", "--new-tokens", "2017"],
            "`decode`: 32 prompt tokens and 2,017 new tokens exceed the context of 2,048",
            "[RUN] -e narrow -s decode --depth 0 --new-tokens 2016 [REST]",
        ),
        (
            &["-s", "decode", "--prompt", "Hello", "--new-tokens", "4000"],
            "`decode`: 2 prompt tokens and 4,000 new tokens exceed the context of 2,048",
            "[RUN] -e narrow -s decode --prompt Hello --new-tokens 2046 [REST]",
        ),
        (
            // The hint fits all selected scenarios.
            &["-s", "decode,prefill", "--depth", "0", "--new-tokens", "2040"],
            "`decode`: 32 prompt tokens and 2,040 new tokens exceed the context of 2,048",
            "[RUN] -e narrow -s decode,prefill --depth 0 --new-tokens 1024 [REST]",
        ),
    ] {
        let message = format!("the requests do not fit the context of `embedded`:\n{requests}");
        let expected = format!("error: {message}\nhint: {hint}\n");
        assert_refused(&scratch, &[&["-e", "narrow"], arguments].concat(), &expected);
    }
    // Each of the two lengths fits alone. Only `load` fits, which takes no prompt length.
    let both = ["-e", "narrow", "--prompt-tokens", "2000", "--new-tokens", "500"];
    for mode in [&[][..], &["--dry-run"]] {
        let outcome = run(&scratch, &[&both, mode].concat()).exits_with(2);
        outcome.assert_stderr(&[
            "the requests do not fit the context of `embedded`:",
            "`decode`: 2,000 prompt tokens and 500 new tokens exceed the context of 2,048",
            "hint: ",
            " --new-tokens 48 ",
        ]);
    }
    assert!(!scratch.join("target").exists() && !scratch.results().exists());
    // `load` does not use the option, so it fits.
    let too_deep = run(&scratch, &["-e", "narrow", "--depth", "9999,12000"]).exits_with(2);
    too_deep.assert_stderr(&["`decode depth 9999`: 10,031 prompt tokens", "hint: ", " --depth 1023 "]);
    // The end of a sweep is a row with the reason.
    let sweep = run(&scratch, &["-e", "narrow", "--depth", "128,9999", "--dry-run"]).exits_with(0);
    sweep.assert_stdout(&["decode depth 9999"]);
    let all = run(&scratch, &["-e", "narrow", "--new-tokens", "2040"]).exits_with(2);
    all.assert_stderr(&["`load`: 16 prompt tokens", "`prefill`: 1,024 prompt tokens", "--new-tokens 1024"]);
}

#[test]
fn a_workload_of_a_suite_that_does_not_fit_is_a_row_and_no_engine_gets_it() {
    let scratch = tree();
    let engine = scratch.engine("able", "--context-tokens 4096");
    let arguments = ["-e", engine.to_str().unwrap(), "--new-tokens", "1100"];
    let outcome = run(&scratch, &arguments);
    let record = Record::only_one_in(&scratch.results());
    let message = "1,024 prompt tokens and 1,100 new tokens exceed the context of 2,048";
    assert_eq!(record.assert_failed("able", "context", "start")["message"], message);
    // The other workloads: `load`, `decode`, and `ttft` at two lengths.
    assert_eq!((record.samples_of("able").len(), outcome.code), (4, Some(4)), "{outcome:?}");
    let dry = run(&scratch, &[&arguments[..], &["--dry-run"]].concat()).exits_with(0);
    dry.assert_stdout(&["not measured on embedded: prefill (the requests exceed the context of 2,048)"]);
}

// `--quantize`.

#[test]
fn quantize_selects_the_preset_or_the_dtype_of_each_engine() {
    let scratch = tree();
    let (outcome, record) = measure(&scratch, &["-e", "narrow", "-e", "wide", "--quantize", "int8"]);
    let options = &record.header()["plan"]["configurations"][record.configuration("narrow:late")]["options"];
    assert_eq!((options["per_token_ns"].as_u64(), record.samples_of("narrow:late").len()), (Some(9000), 1));
    let failure = record.assert_failed("wide", "unsupported", "start");
    assert_eq!((&failure["message"], outcome.code), (&"no int8 preset".into(), Some(4)), "{outcome:?}");
    assert!(!scratch.join("target/release/wide-engine").exists());

    let (outcome, record) = measure(&tree(), &["--all", "--quantize", "bfloat16"]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let wide = &record.header()["plan"]["configurations"][record.configuration("wide")];
    assert_eq!((&wide["dtype"], record.samples_of("wide").len()), (&"bf16".into(), 1));
    assert_eq!(record.failure_of("narrow")["message"], "no bfloat16 preset");
}

#[test]
fn quantize_is_refused_if_the_word_is_unknown_or_another_preset_is_named() {
    let scratch = tree();
    let own = scratch.engine("own", "");
    for (arguments, expected) in [
        (
            &["-e", "narrow", "--quantize", "tf19"][..],
            "--quantize: no precision named `tf19`\nhint: choose one of `bfloat16`, `int8`",
        ),
        (
            &["-e", "wide", "-e", own.to_str().unwrap(), "--quantize", "int8"],
            "--quantize int8: none of the selected engines has a preset for it\nhint: [RUN] -e wide -e {own} --quantize int8 [REST] -e narrow",
        ),
        (
            &["-e", "narrow", "--quantize", "int9"],
            "--quantize: no precision named `int9`\nhint: [RUN] -e narrow --quantize int8 [REST]",
        ),
        (
            &["-e", "narrow:late", "--quantize", "int8"],
            "--quantize int8 selects a preset of each engine, and `narrow:late` names one\n\
             hint: [RUN] -e narrow --quantize int8 [REST]",
        ),
    ] {
        let expected = expected.replace("{own}", own.to_str().unwrap());
        assert_refused(&scratch, arguments, &format!("error: {expected}\n"));
    }
    for other in [&["--presets"][..], &["--dtype", "f32"]] {
        let outcome = run(&scratch, &[&["-e", "narrow", "--quantize", "int8"], other].concat()).exits_with(2);
        outcome.assert_stderr(&["`--quantize` cannot be used with", other[0]]);
    }
}

#[test]
fn the_hint_of_quantize_names_only_engines_that_have_the_preset_on_this_device() {
    let scratch = Scratch::outside_checkout();
    let manifest = |name: &str, rest: &str| {
        let program = format!("{name}-engine");
        let build = build_command(&program);
        format!(
            "about = \"an engine\"\nbinary = \"{program}\"\n[build]\n{build}\
             [load]\ndevices = [\"cpu\", \"cuda\"]\n{rest}"
        )
    };
    let small = |devices: &str| {
        format!("[presets.small]\nabout = \"4 bits\"\n{devices}[quantize]\nnf4 = {{ preset = \"small\" }}\n")
    };
    scratch.write_tree(&[
        ("plain", &manifest("plain", "")),
        ("on-gpu", &manifest("on-gpu", &small("devices = [\"cuda\"]\n"))),
    ]);
    let none = "error: --quantize nf4: none of the selected engines has a preset for it\nhint: [RUN]";
    let plain = &["-e", "plain", "--quantize", "nf4"];
    assert_refused(
        &scratch,
        plain,
        &format!("{none} -e plain --quantize nf4 [REST] -e on-gpu --device cuda\n"),
    );
    let expected = "`on-gpu` has no device `cpu`\nhint: [RUN] -e on-gpu --quantize nf4 [REST] --device cuda";
    assert_refused(&scratch, &["-e", "on-gpu", "--quantize", "nf4"], &format!("error: {expected}\n"));
    scratch.write_tree(&[("everywhere", &manifest("everywhere", &small("")))]);
    assert_refused(&scratch, plain, &format!("{none} -e plain --quantize nf4 [REST] -e everywhere\n"));
    // A program has no presets, but the engine of its name may have them.
    let program = scratch.engine("everywhere-engine", "");
    let program = program.to_str().unwrap();
    let expected = format!("{none} -e everywhere --quantize nf4 [REST]\n");
    assert_refused(&scratch, &["-e", program, "--quantize", "nf4"], &expected);
}

#[test]
fn the_hint_of_quantize_names_no_device_without_a_driver() {
    let scratch = Scratch::outside_checkout();
    let plain = "about = \"x\"\nbinary = \"plain\"\n[presets.late]\nabout = \"x\"\n[quantize]\nint8 = { preset = \"late\" }\n";
    let on_gpu = "about = \"x\"\nbinary = \"on-gpu\"\n[load]\ndevices = [\"cuda\"]\n[needs]\ndriver = \"nvidia\"\n\
                  [presets.small]\nabout = \"x\"\n[quantize]\nnf4 = { preset = \"small\" }\n";
    scratch.write_tree(&[("plain", plain), ("on-gpu", on_gpu)]);
    for (library, hint) in [
        (driver::present(&scratch), " -e on-gpu --device cuda\n"),
        (driver::absent(&scratch), "\nhint: the only one is `int8`\n"),
    ] {
        let mut command = scratch.orchestrate_without_checkout();
        command.args(["-e", "plain", "--quantize", "nf4"]).env("LD_LIBRARY_PATH", library);
        let outcome = finish(&mut command).exits_with(2);
        assert!(outcome.stderr.ends_with(hint), "{outcome:?}");
    }
}

#[test]
fn a_dry_run_takes_no_times_from_records_of_other_machines() {
    let scratch = tree();
    let dry_run =
        || run(&scratch, &["-e", "wide", "-s", "decode", "--depth", "0", "--dry-run"]).exits_with(0);
    run(&scratch, &["-e", "wide", "-s", "decode", "--depth", "0"]).exits_with(0);
    dry_run().assert_stdout(&["from earlier runs on this machine"]);
    // The record of another machine differs in its fingerprint.
    for file in crate::support::record::files(&scratch.results()) {
        let text = std::fs::read_to_string(&file).unwrap();
        let at = text.find("\"fingerprint\":\"").unwrap() + "\"fingerprint\":\"".len();
        std::fs::write(&file, format!("{}elsewhere{}", &text[..at], &text[at..])).unwrap();
    }
    let outcome = dry_run();
    assert!(!outcome.stdout.contains("from earlier runs on this machine"), "{outcome:?}");
    outcome.assert_stdout(&["no estimate for `wide`: no earlier run in the folder of records"]);
}

#[test]
fn a_path_that_is_no_model_is_refused_before_a_build() {
    let scratch = tree();
    std::fs::create_dir_all(scratch.join("notes")).unwrap();
    std::fs::write(scratch.join("notes/readme.txt"), "no weights").unwrap();
    std::fs::write(scratch.join("config.json"), "{}").unwrap();
    std::fs::create_dir_all(scratch.join("cut")).unwrap();
    std::fs::write(scratch.join("cut/config.json"), "{\"model_type\"").unwrap();
    let wrong = [
        ("cut", "its config.json is not a JSON object: EOF while parsing an object at line 1 column 13"),
        ("notes", "the folder has no config.json and no weights"),
        ("notes/readme.txt", "the file is not a model: it has no weights"),
        ("config.json", "this is the configuration of a model; name its folder"),
    ];
    for (path, why) in wrong {
        let path = scratch.join(path).display().to_string();
        let expected = format!("error: model `{path}`: {why}\nhint: ./bin/orchestrate model list\n");
        for mode in [&[][..], &["--dry-run"]] {
            let mut command = scratch.orchestrate_without_checkout();
            command.args(["-e", "narrow", "-s", "decode", "--depth", "0", "-m", &path]).args(mode);
            let outcome = finish(command.arg("--results").arg(scratch.results()));
            assert_eq!(
                (outcome.code, outcome.stderr.as_str()),
                (Some(2), expected.as_str()),
                "{path} {mode:?}"
            );
        }
        assert!(!scratch.join("target").exists() && !scratch.results().exists(), "{path}");
    }
}

#[test]
fn a_number_of_threads_that_is_no_number_is_refused_in_plain_words() {
    let outcome = run(&tree(), &["-e", "narrow", "--threads", "x"]).exits_with(2);
    assert!(outcome.stderr.contains("expected a whole number from 1 to 4096"), "{outcome:?}");
}

#[test]
fn a_dry_run_names_the_dtype_of_each_row() {
    let outcome = run(&tree(), &["-e", "wide", "--no-setup", "--quantize", "bfloat16", "--dry-run"]);
    assert!(outcome.stdout.contains("wide on embedded in bf16"), "{outcome:?}");
}

#[test]
fn a_shape_and_a_mistyped_model_have_a_hint() {
    let scratch = tree();
    let of_model = |name| run(&scratch, &["-e", "narrow", "-m", name]).exits_with(2);
    of_model("llama-3.2-1b").assert_stderr(&[
        "it is the name of a shape",
        "orchestrate model synth llama-3.2-1b --out llama-3.2-1b",
    ]);
    of_model("llama-3.2-1").assert_stderr(&[
        "no model at `llama-3.2-1`; `llama-3.2-1b` is the name of a shape",
        "orchestrate model synth llama-3.2-1b --out llama-3.2-1b",
    ]);
    of_model("embeded").assert_stderr(&["no model at `embeded`", "-m embedded"]);
}
