//! What a record holds for proof that engines did the work: what they said of held-out text before anything was measured, and
//! what the witness says of the tokens that were measured.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

mod support;

use std::path::{Path, PathBuf};

use model_files::embedded;
use serde_json::Value;

use support::record::Record;
use support::{Outcome, Scratch, fake_engine, finish};

const RUN: &[&str] =
    &["--scenario", "decode", "--iterations", "2", "--blocks", "1", "--warmup", "3", "--json", "-"];
/// Windows of the held-out text of the embedded model.
const WINDOWS: usize = 5;
/// Tokens from 30 on are wrong once it has been asked for proof, from the third warm-up request on.
const WRONG_LATER: &[&str] = &["--wrong-from", "30", "--at", "2"];

// Before the first block.

#[test]
fn each_engine_scores_held_out_text_and_goes_on_with_a_prompt_before_anything_is_measured() {
    let run = run(&[("one", &[]), ("other", &["--score-noise", "0.01"])], &[("witness", &[])], &[]);
    let [held_out] = run.record.entries("held_out")[..] else { panic!("{:?}", run.record) };
    let lengths: Vec<_> =
        held_out["sequences"].as_array().unwrap().iter().map(|it| it.as_array().unwrap().len()).collect();
    assert_eq!(lengths, [128, 128, 128, 128, 1152]);
    for label in ["one", "other", "witness (witness)"] {
        let scored = run.of("scored", label);
        let sequences: Vec<_> = scored.iter().map(|it| it["sequence"].as_u64().unwrap() as usize).collect();
        assert_eq!(sequences, (0..WINDOWS).collect::<Vec<_>>());
        for (scored, length) in scored.iter().zip(&lengths) {
            assert_eq!(scored["logprobs"].as_array().unwrap().len(), length - 1);
            assert!(scored["elapsed_ns"].as_u64().unwrap() > 0);
        }
        let [continued] = run.of("continued", label)[..] else { panic!("{label}: {:?}", run.record) };
        assert_eq!(continued["ids"].as_array().unwrap().len(), 48);
    }
    let said = |label| (run.logprobs(label), &run.of("continued", label)[0]["ids"]);
    assert_eq!(said("one"), said("witness (witness)"));
    let (theirs, honest) = (run.logprobs("other"), run.logprobs("one"));
    let squares = theirs.iter().zip(&honest).map(|(one, other)| (one - other) * (one - other));
    let rms = (squares.sum::<f64>() / theirs.len() as f64).sqrt();
    assert!((rms - 0.01).abs() < 0.001, "{rms}");
    assert_eq!(run.record.entries("unproved"), Vec::<&Value>::new());
    let first = |kind: &str| run.record.0.iter().position(|it| it["entry"] == kind).unwrap();
    let last_proof = run.record.0.iter().rposition(|it| it["entry"] == "scored").unwrap();
    assert!(first("held_out") < first("scored") && last_proof < first("sample"));
    assert!(run.outcome.stderr.contains("proving one\n"), "{}", run.outcome.stderr);
}

#[test]
fn what_is_launched_for_proof_counts_nowhere() {
    let proved = run(&[("one", &[]), ("other", &[])], &[("witness", &[])], &[]);
    let unproved = run(&[("one", &[]), ("other", &[])], &[], &["--witness", "none"]);
    assert_eq!(unproved.record.entries("held_out").len() + unproved.record.entries("unproved").len(), 0);
    for label in ["one", "other"] {
        let proofs = proved.record.launches_of(label).into_iter().filter(|it| it["proves"] == true);
        let numbers: Vec<_> = proofs.map(|it| &it["launch"]).collect();
        assert_eq!(numbers.len(), 1);
        let in_them =
            proved.record.entries("sample").into_iter().filter(|it| numbers.contains(&&it["launch"]));
        assert_eq!(in_them.count(), 0);
        assert_eq!(proved.record.samples_of(label).len(), 2);
        let counts = |run: &Run| {
            let case = run.case_of(label);
            (case["samples"].clone(), case["launches"].clone(), case["failure"].clone())
        };
        assert_eq!(counts(&proved), counts(&unproved));
        assert_eq!(counts(&proved).1, 1);
    }
    // The witness is nobody's rival.
    assert_eq!(proved.report["cases"].as_array().unwrap().len(), 2);
}

#[test]
fn an_engine_without_score_goes_on_with_the_prompt_all_the_same() {
    let run = run(&[("mute", &["--capabilities", r#"{"score":false}"#])], &[("witness", &[])], &[]);
    assert_eq!(run.of("scored", "mute").len(), 0);
    assert_eq!(run.of("continued", "mute")[0]["ids"], run.of("continued", "witness (witness)")[0]["ids"]);
    assert_eq!(run.reasons("mute"), ["offers no `score`"]);
    run.measured("mute");
}

#[test]
fn an_engine_that_gives_text_says_what_it_is_likely_to_and_no_more() {
    let settings = &["--output", "text", "--capabilities", r#"{"stream":false}"#];
    let run = run(&[("talker", settings)], &[("witness", &[])], &[]);
    assert_eq!(run.of("scored", "talker").len(), WINDOWS);
    assert_eq!(run.of("continued", "talker").len(), 0);
    assert_eq!(run.reasons("talker"), ["gives text, not ids"]);
    run.measured("talker");
}

#[test]
fn an_engine_that_knows_generate_alone_is_measured_and_proves_nothing() {
    let run = run(&[("small", &["--fault", "says_bad_request_to_hello"])], &[("witness", &[])], &[]);
    assert_eq!(run.of("scored", "small").len() + run.of("continued", "small").len(), 0);
    assert!(run.record.launches_of("small").iter().all(|it| it["proves"] != true));
    assert_eq!(run.reasons("small")[0], "knows `generate` alone, and no `score`");
    run.measured("small");
}

#[test]
fn too_few_log_probabilities_are_a_breach_of_the_protocol() {
    let run = run(&[("short", &["--fault", "wrong_scores"]), ("sound", &[])], &[("witness", &[])], &[]);
    assert_eq!(run.outcome.code, Some(4), "{}", run.outcome.stderr);
    let [failure] = run.record.failures_of("short")[..] else { panic!("{:?}", run.record) };
    assert_eq!((&failure["kind"], &failure["when"]), (&"protocol".into(), &"proof".into()));
    assert_eq!(failure["message"], "126 `logprobs` of a sequence where 127 were asked");
    assert_eq!(run.record.samples_of("short").len(), 0);
    run.measured("sound");
}

#[test]
fn a_probability_above_one_is_a_breach_of_the_protocol() {
    let run = run(&[("eager", &["--score-offset", "9.5"]), ("sound", &[])], &[("witness", &[])], &[]);
    let [failure] = run.record.failures_of("eager")[..] else { panic!("{:?}", run.record) };
    assert_eq!((&failure["kind"], &failure["when"]), (&"protocol".into(), &"proof".into()));
    assert!(failure["message"].as_str().unwrap().ends_with("a probability above 1"), "{failure}");
    run.measured("sound");
}

#[test]
fn an_engine_that_ends_when_it_is_asked_for_proof_is_unproved_for_that_and_goes_on_to_its_own_end() {
    let run = run(&[("brittle", &["--fault", "exits_at_sample"]), ("sound", &[])], &[("witness", &[])], &[]);
    assert_eq!(run.reasons("brittle"), ["exited at proof: ended with exit code 3 before it answered"]);
    let [failure] = run.record.failures_of("brittle")[..] else { panic!("{:?}", run.record) };
    assert_eq!(failure["when"], "warm-up 1");
    run.measured("sound");
}

#[test]
fn what_cannot_be_loaded_fails_once_and_not_a_second_time_in_its_block() {
    let run = run(&[("broken", &["--fault", "fails_in_load"]), ("sound", &[])], &[("witness", &[])], &[]);
    let [failure] = run.record.failures_of("broken")[..] else { panic!("{:?}", run.record) };
    assert_eq!((&failure["kind"], &failure["when"]), (&"model".into(), &"load".into()));
    assert_eq!(run.record.launches_of("broken").len(), 1);
    run.measured("sound");
}

#[test]
fn a_small_context_in_effect_leaves_out_the_long_window_and_says_so() {
    let run = run(&[("narrow", &["--context-tokens", "1000"])], &[("witness", &[])], &[]);
    assert_eq!(run.of("scored", "narrow").len(), WINDOWS - 1);
    let reason = "a window of 1152 tokens passes its context of 1000; 512 tokens were scored";
    assert_eq!(run.reasons("narrow"), [reason]);
}

#[test]
fn one_shots_are_asked_for_proof_in_a_process_of_its_own() {
    let run = run(&[("cold", &[])], &[("witness", &[])], &["--mode", "one-shot"]);
    assert_eq!(run.of("scored", "cold").len(), WINDOWS);
    assert_eq!(run.of("continued", "cold").len(), 1);
    assert!(run.reasons("cold")[0].starts_with("its prompts were sent as text"), "{:?}", run.record);
    run.measured("cold");
}

#[test]
fn without_an_engine_that_vouches_the_witness_that_is_kept_beside_the_model_stands_in() {
    let run = run(&[("one", &[])], &[], &[]);
    let [kept] = run.record.entries("kept")[..] else { panic!("{:?}", run.record) };
    let held_out = run.record.entries("held_out")[0];
    assert_eq!(kept["model"], held_out["model"]);
    assert_eq!(kept["logprobs"].as_array().unwrap().len(), WINDOWS);
    assert_eq!(kept["continued"].as_array().unwrap().len(), 48);
    assert_eq!(run.of("scored", "one").len(), WINDOWS);
    // It cannot be asked about anything else.
    let [unproved] = run.record.entries("unproved")[..] else { panic!("{:?}", run.record) };
    assert_eq!(unproved["model"], held_out["model"]);
    assert!(unproved["reason"].as_str().unwrap().starts_with("its measured tokens were shown to nobody"));
    assert!(unproved["hint"].as_str().unwrap().contains(" setup "), "{unproved}");
    run.measured("one");
}

#[test]
fn a_witness_that_is_kept_is_made_by_a_command_and_is_of_these_weights_alone() {
    let scratch = Scratch::new();
    let model = scratch.join("model");
    copy(&embedded::folder().unwrap(), &model);
    let witness = scratch.script("sage", &format!("exec '{}' --engine sage", fake_engine().display()));
    let make = |more: &[&str]| {
        let mut command = scratch.orchestrate();
        command.args(["model", "witness"]).arg(&model).arg("--witness").arg(&witness).args(more);
        finish(command.env("ORCHESTRATE_WITNESS", "none"))
    };
    // Another engine's word, and the same question.
    let refused = make(&[]);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(refused.stderr.contains("is there already\nhint: --force"), "{refused:?}");
    let made = make(&["--force"]);
    assert_eq!(made.code, Some(0), "{made:?}");
    let path = model.join("witness.json");
    assert_eq!(made.stdout, format!("{}\n", path.display()));
    let kept: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    assert_eq!((&kept["by"], kept["continued"].as_array().unwrap().len()), (&"sage 1.2.3".into(), 48));
    let left = std::fs::read_dir(&model).unwrap().count();
    assert_eq!(left, std::fs::read_dir(embedded::folder().unwrap()).unwrap().count());

    let run = |name: &str| {
        let results = scratch.join(name);
        let mut command = scratch.orchestrate();
        command.env_remove("ORCHESTRATE_WITNESS").arg("-e").arg(&witness).arg("-m").arg(&model).args(RUN);
        let outcome = finish(command.arg("--results").arg(&results));
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        Record::only_one_in(&results)
    };
    let with = run("with");
    assert_eq!(with.entries("kept")[0]["by"], "sage 1.2.3");
    assert_eq!(with.entries("continued")[0]["ids"], with.entries("kept")[0]["continued"]);
    // One bit of the last weight.
    let weights = model.join("model.safetensors");
    let mut bytes = std::fs::read(&weights).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&weights, bytes).unwrap();
    let other = run("other");
    assert_eq!((other.entries("kept").len(), other.entries("held_out").len()), (0, 1));
}

// After the last block.

#[test]
fn tokens_that_turn_wrong_while_they_are_measured_are_found_and_honest_ones_are_not() {
    let run = run(&[("turns", WRONG_LATER), ("honest", &[])], &[("witness", &[])], &[]);
    // Before the blocks there was nothing to see.
    assert_eq!(run.of("continued", "turns")[0]["ids"], run.of("continued", "honest")[0]["ids"]);
    let gap = |opinion: &Value| {
        opinion["own_logprob"].as_f64().unwrap() - opinion["theirs_logprob"].as_f64().unwrap()
    };
    let turns = run.opinions("turns");
    let (wrong, right): (Vec<&Value>, Vec<&Value>) =
        turns.into_iter().partition(|it| it["theirs"] != it["own"]);
    assert!(
        wrong.len() >= 6 && wrong.iter().all(|it| it["place"].as_u64() >= Some(30) && gap(it) > 5.0),
        "{wrong:?}"
    );
    assert!(!right.is_empty() && right.iter().all(|it| it["place"].as_u64() < Some(30)), "{right:?}");
    let honest = run.opinions("honest");
    assert_eq!(honest.len(), 2 * 8);
    assert!(honest.iter().all(|it| it["theirs"] == it["own"] && gap(it) == 0.0), "{honest:?}");
    assert!(run.outcome.stderr.contains("about the tokens of 4 samples"), "{}", run.outcome.stderr);
    run.measured("turns").measured("honest");
}

#[test]
fn what_the_witnesss_own_row_gave_needs_no_opinion() {
    let run = run(&[("one", &[]), ("turns", WRONG_LATER), ("honest", &[])], &[], &["--witness-is", "one"]);
    assert_eq!((run.opinions("one").len(), run.opinions("honest").len()), (0, 0));
    let turns = run.opinions("turns");
    // The first place that differs is among them.
    assert!(turns.iter().any(|it| it["place"] == 30 && it["own"] != it["theirs"]), "{turns:?}");
    assert_eq!(run.record.launches_of("one").iter().filter(|it| it["proves"] == true).count(), 2);
}

#[test]
fn where_all_agree_with_the_witnesss_row_it_is_not_started_again() {
    let run = run(&[("one", &[]), ("honest", &[])], &[], &["--witness-is", "one"]);
    assert_eq!(run.record.entries("opinion"), Vec::<&Value>::new());
    assert_eq!(run.record.launches_of("one").iter().filter(|it| it["proves"] == true).count(), 1);
}

#[test]
fn a_witness_that_dies_when_it_is_asked_loses_no_result() {
    let dies = &["--fault", "exits_at_sample", "--at", "1"];
    let run = run(&[("turns", WRONG_LATER)], &[("witness", dies)], &[]);
    assert_eq!((run.outcome.code, run.record.end()), (Some(0), Some("finished")), "{:?}", run.outcome);
    let [unproved] = run.record.entries("unproved")[..] else { panic!("{:?}", run.record) };
    let reason = unproved["reason"].as_str().unwrap();
    assert!(reason.contains("witness (witness): exited: ended with exit code 3"), "{reason}");
    run.measured("turns");
}

#[test]
fn a_witness_that_cannot_be_loaded_is_no_failure_of_the_run() {
    let run = run(&[("one", &[])], &[("witness", &["--fault", "exits_in_load"])], &[]);
    assert_eq!(run.outcome.code, Some(0), "{:?}", run.outcome);
    let [unproved] = run.record.entries("unproved")[..] else { panic!("{:?}", run.record) };
    assert!(
        unproved["reason"].as_str().unwrap().starts_with("witness (witness): exited at load"),
        "{unproved}"
    );
    assert_eq!(run.record.entries("failure"), Vec::<&Value>::new());
    run.measured("one");
}

#[test]
fn a_witness_without_score_says_what_it_would_have_taken() {
    let silent = &["--capabilities", r#"{"score":false}"#];
    let run = run(&[("turns", WRONG_LATER)], &[("witness", silent)], &[]);
    let turns = run.opinions("turns");
    assert!(turns.iter().any(|it| it["own"] != it["theirs"]), "{turns:?}");
    assert!(turns.iter().all(|it| it["own_logprob"].is_null() && it["theirs_logprob"].is_null()));
}

#[test]
fn where_an_engine_masks_eos_it_is_not_blamed_for_going_round_it() {
    // The witness would end after place 40; a masked engine takes the next best.
    let masked = &["--wrong-from", "40", "--capabilities", r#"{"ignore_eos":"masked"}"#];
    let ends = &["--eos-at", "0"];
    let run = run(&[("masks", masked)], &[("witness", ends)], &[]);
    assert!(run.opinions("masks").len() > 4);
    assert!(run.opinions("masks").iter().all(|it| it["own"] == it["theirs"]), "{:?}", run.opinions("masks"));
}

#[test]
fn sampled_tokens_are_not_held_against_greedy_ones() {
    let run = run(&[("one", &[])], &[("witness", &[])], &["--temperature", "0.8"]);
    assert_eq!(run.record.entries("opinion"), Vec::<&Value>::new());
    run.measured("one");
}

// What is said of it in the end.

/// Beside `decode`.
const AND_ONE_TOKEN: &[&str] = &["--scenario", "ttft"];

/// Whatever it would have said.
const GARBLES_ONE_TOKEN: &[&str] = &["|", "sed", "-u", r#"s/"output_ids":\[[0-9]*\]/"output_ids":[77]/"#];

#[test]
fn garbage_in_requests_of_one_token_alone_is_called_wrong_and_an_honest_engine_beside_it_is_not() {
    let run = run(&[("liar", GARBLES_ONE_TOKEN), ("honest", &[])], &[("witness", &[])], AND_ONE_TOKEN);
    let given = |label: &str| -> Vec<(usize, Value)> {
        let outputs =
            run.record.samples_of(label).into_iter().map(|it| &it["iteration"]["sequences"][0]["output_ids"]);
        outputs.map(|ids| (ids.as_array().unwrap().len(), ids.clone())).collect()
    };
    for (theirs, honest) in given("liar").iter().zip(&given("honest")) {
        assert_eq!(theirs == honest, theirs.0 > 1, "{theirs:?} {honest:?}");
    }
    assert_eq!(run.standing("liar"), "wrong", "{}", run.report["outputs"]);
    assert_eq!(run.standing("honest"), "exact", "{}", run.report["outputs"]);
    assert_eq!(run.outcome.code, Some(4));
}

#[test]
fn every_workload_is_judged_where_the_witness_is_no_row() {
    let run = run(&[("honest", &[])], &[("witness", &[])], AND_ONE_TOKEN);
    let cases: std::collections::BTreeSet<u64> =
        run.record.entries("opinion").iter().map(|it| it["case"].as_u64().unwrap()).collect();
    let measured: std::collections::BTreeSet<u64> =
        run.record.samples_of("honest").iter().map(|it| it["case"].as_u64().unwrap()).collect();
    assert!(measured.len() > 1 && cases == measured, "{cases:?} {measured:?}");
    assert_eq!(run.standing("honest"), "exact", "{}", run.report["outputs"]);
}

#[test]
fn where_no_witness_can_run_nothing_good_is_said_of_anybody_and_a_note_says_why() {
    let scratch = Scratch::new();
    let model = scratch.join("model");
    copy(&embedded::folder().unwrap(), &model);
    let fake = fake_engine();
    let engine = |name: &str, settings: &str| {
        scratch.script(name, &format!("exec '{}' --engine {name} {settings}", fake.display()))
    };
    let mut command = scratch.orchestrate();
    command.args(["model", "witness", "--force"]).arg(&model).arg("--witness").arg(engine("sage", ""));
    assert_eq!(finish(command.env("ORCHESTRATE_WITNESS", "none")).code, Some(0));
    let mut command = scratch.orchestrate();
    command.env_remove("ORCHESTRATE_WITNESS").arg("-m").arg(&model).args(RUN);
    command.arg("-e").arg(engine("turns", &WRONG_LATER.join(" "))).arg("-e").arg(engine("honest", ""));
    let outcome = finish(command.arg("--results").arg(scratch.results()));
    let report = serde_json::from_str(&outcome.stdout).unwrap();
    let run = Run { record: Record::only_one_in(&scratch.results()), report, outcome };
    assert_eq!(run.record.entries("kept")[0]["by"], "sage 1.2.3");
    for label in ["turns", "honest"] {
        assert_eq!((run.standing(label), run.why(label).len()), ("unverified", 1));
        let why = run.why(label)[0];
        assert!(
            why.starts_with("its measured tokens were shown to nobody: no witness can run here"),
            "{why}"
        );
        assert!(why.contains("(hint: ") && why.contains(" setup "), "{why}");
    }
    assert!(run.report["notes"].to_string().contains("were shown to nobody"), "{}", run.report["notes"]);
    run.measured("turns").measured("honest");
}

#[test]
fn text_and_samples_are_unverified_and_honest_ids_beside_them_are_exact() {
    let talks = &["--output", "text", "--capabilities", r#"{"stream":false}"#];
    let reads = &["--capabilities", r#"{"prompt_ids":false}"#, "--wrong-from", "0"];
    let engines: &[(&str, &[&str])] = &[("talks", talks), ("reads", reads), ("honest", &[])];
    let greedy = run(engines, &[("witness", &[])], &[]);
    assert_eq!((greedy.standing("talks"), greedy.standing("reads")), ("unverified", "unverified"));
    assert_eq!(greedy.why("talks"), ["gives text, not ids"]);
    assert!(greedy.why("reads")[0].starts_with("takes text, so its ids"), "{:?}", greedy.why("reads"));
    assert_eq!(greedy.standing("honest"), "exact", "{}", greedy.report["outputs"]);
    let sampled = run(&[("honest", &[])], &[("witness", &[])], &["--temperature", "0.8"]);
    assert_eq!(sampled.standing("honest"), "unverified");
    assert_eq!(sampled.why("honest"), ["sampled tokens are not compared"]);
}

#[test]
fn without_the_long_window_an_engine_is_unverified() {
    let run = run(&[("narrow", &["--context-tokens", "1000"]), ("honest", &[])], &[("witness", &[])], &[]);
    assert_eq!(run.standing("narrow"), "unverified");
    assert_eq!(
        run.why("narrow"),
        ["a window of 1152 tokens passes its context of 1000; 512 tokens were scored"]
    );
    assert_eq!(run.standing("honest"), "exact", "{}", run.report["outputs"]);
}

#[test]
fn a_cache_in_2_bits_that_nobody_asked_for_excuses_no_scores() {
    let claims = &["--loaded", r#"{"kv_dtype":"q2_k"}"#, "--score-noise", "0.5"];
    let run = run(&[("claims", claims), ("honest", &[])], &[("witness", &[])], &[]);
    assert_eq!((run.standing("claims"), run.standing("honest")), ("wrong", "exact"));
    assert!(run.why("claims")[0].ends_with("16 bits explain 0.10"), "{:?}", run.why("claims"));
}

#[test]
fn where_the_witness_does_not_come_to_judge_its_kindest_word_is_unverified() {
    let hangs = &["--fault", "hangs_in_generate", "--at", "1"];
    let run = run(&[("turns", WRONG_LATER)], &[("witness", hangs)], &["--timeout", "10"]);
    assert_eq!(run.standing("turns"), "unverified", "{}", run.report["outputs"]);
    let why = run.why("turns");
    assert_eq!(why[0], "its tokens in `decode` were shown to nobody");
    assert!(why[1].contains("witness (witness): timeout"), "{why:?}");
    run.measured("turns");
}

/// Engines by name with their settings, and an engine that vouches. Settings that begin with `|` are a program that gets what
/// the engine says. `--witness-is NAME` in the options makes one of the
/// engines that; without any of these whatever is usual vouches.
fn run(engines: &[(&str, &[&str])], witness: &[(&str, &[&str])], options: &[&str]) -> Run {
    let scratch = Scratch::new();
    let engine = |&(name, settings): &(&str, &[&str])| -> PathBuf {
        let pipes = settings.first() == Some(&"|");
        let settings: Vec<_> = settings.iter().skip(pipes.into()).map(|it| format!("'{it}'")).collect();
        let (fake, settings) = (fake_engine(), settings.join(" "));
        let line = match pipes {
            true => format!("'{}' | {settings}", fake.display()),
            false => format!("exec '{}' {settings}", fake.display()),
        };
        scratch.script(name, &line)
    };
    let mut command = scratch.orchestrate();
    command.env_remove("ORCHESTRATE_WITNESS");
    for one in engines {
        command.arg("-e").arg(engine(one));
    }
    for one in witness {
        command.arg("--witness").arg(engine(one));
    }
    match options {
        ["--witness-is", name] => command.arg("--witness").arg(scratch.join(name)),
        options => command.args(options),
    };
    let outcome = finish(command.args(RUN).arg("--results").arg(scratch.results()));
    scratch.assert_nothing_lives();
    let report = serde_json::from_str(&outcome.stdout);
    let report = report.unwrap_or_else(|error| panic!("{error}: stdout is no JSON document\n{outcome:?}"));
    assert!(!outcome.stderr.contains("panicked"), "{}", outcome.stderr);
    Run { record: Record::only_one_in(&scratch.results()), report, outcome }
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for file in std::fs::read_dir(from).unwrap().flatten() {
        std::fs::copy(file.path(), to.join(file.file_name())).unwrap();
    }
}

struct Run {
    outcome: Outcome,
    report: Value,
    record: Record,
}

impl Run {
    /// Entries of a kind that are about this configuration.
    fn of(&self, kind: &str, label: &str) -> Vec<&Value> {
        let configuration = self.record.configuration(label);
        self.record.entries(kind).into_iter().filter(|it| it["configuration"] == configuration).collect()
    }

    fn logprobs(&self, label: &str) -> Vec<f64> {
        let scored = self.of("scored", label);
        let values = scored.iter().flat_map(|it| it["logprobs"].as_array().unwrap());
        values.map(|value| value.as_f64().unwrap()).collect()
    }

    fn reasons(&self, label: &str) -> Vec<&str> {
        self.of("unproved", label).iter().map(|it| it["reason"].as_str().unwrap()).collect()
    }

    /// What the witness said of this configuration's samples.
    fn opinions(&self, label: &str) -> Vec<&Value> {
        let launches: Vec<_> = self.record.launches_of(label).iter().map(|it| &it["launch"]).collect();
        self.record.entries("opinion").into_iter().filter(|it| launches.contains(&&it["launch"])).collect()
    }

    fn output_of(&self, label: &str) -> &Value {
        let outputs = self.report["outputs"].as_array().unwrap();
        outputs.iter().find(|it| it["engine"] == label).unwrap()
    }

    fn standing(&self, label: &str) -> &str {
        self.output_of(label)["standing"].as_str().unwrap()
    }

    fn why(&self, label: &str) -> Vec<&str> {
        self.output_of(label)["reasons"].as_array().unwrap().iter().map(|it| it.as_str().unwrap()).collect()
    }

    fn case_of(&self, label: &str) -> &Value {
        let cases = self.report["cases"].as_array().unwrap();
        cases.iter().find(|case| case["engine"]["label"] == label).unwrap()
    }

    /// Whatever was proved of it.
    fn measured(&self, label: &str) -> &Self {
        assert_eq!(self.case_of(label)["samples"], 2, "{}", self.report);
        assert_eq!(self.record.samples_of(label).len(), 2);
        assert_eq!(self.record.failures_of(label), Vec::<&Value>::new());
        self
    }
}
