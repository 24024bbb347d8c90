//! Real engines: they agree, they follow the protocol, and one run measures all of them.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use model_files::{ModelFolder, embedded};
use protocol::{FailureKind, Generate};
use serde_json::Value;

use crate::engine::{
    Engine, GENERATED_TOKENS, assert_agree, assert_is_ready, binary, engine_without_environment,
    engines_in_tree, float_bounds, least_precise, manifest, needs_driver, reference, slot, with_user_setup,
};
use crate::support::record::Record;
use crate::support::{Outcome, Scratch, copy_folder, finish, root};

/// The largest difference of an engine in f32 from the stored reference answers, in log-probability (natural logarithm).
const TOLERANCE: f64 = 1e-3;
/// The samples of an engine in one block of the default suite with `--iterations 2`: one of `load`, two at each of the two
/// prompt lengths of `ttft`, two of `prefill` and two of `decode`.
const DEFAULT_SUITE_SAMPLES: usize = 9;

// Agreement.

#[test]
fn every_engine_in_f32_equals_the_reference_in_tokens_and_log_probabilities() {
    let _slot = slot();
    // Prompts of 5, 100 and 400 tokens.
    let prompts = [heldout_ids(0, 5), heldout_ids(3000, 100), heldout_ids(9000, 400)];
    let texts = ["Hello", "The old  keeper; naïve, 47 times.\n"];
    let passage = heldout_ids(20_000, 300);
    // An engine that gives text has a test of its own. Engines run one at a time, so that each engine has the whole memory.
    let give_ids = cpu_engines().into_iter().map(|name| Engine::start(&name)).filter(Engine::gives_ids);
    let mut engines = give_ids.map(|mut engine| {
        let name = engine.name.clone();
        let loaded = engine.load(&embedded::folder().unwrap(), Some("f32"));
        let facts = loaded.unwrap_or_else(|failed| panic!("{name}: {failed:?}")).facts;
        assert_eq!(facts.compute_dtype.as_deref(), Some("f32"), "{name}");
        let generated_ids = prompts.each_ref().map(|prompt| engine.generate(prompt));
        let counts_and_ids = texts.map(|text| {
            engine.prompt_tokens_and_ids(Generate {
                prompt: Some(text.into()),
                max_new_tokens: 8,
                ..Generate::default()
            })
        });
        // Some engines store the KV cache in fewer bits than they compute in, so the least precise dtype decides.
        let bounds = float_bounds(least_precise(&facts));
        let scores = engine.scores().then(|| engine.score(&passage));
        (name, generated_ids, counts_and_ids, scores, bounds)
    });
    let (_, expected, expected_counts_and_ids, expected_scores, _) = engines.next().unwrap();
    let expected_scores = expected_scores.unwrap();
    assert!(expected.iter().all(|ids| ids.len() == GENERATED_TOKENS as usize));
    assert_eq!(expected_scores.len(), passage.len() - 1);
    // The model was trained on this kind of text, so its probabilities are far from uniform.
    let mean = expected_scores.iter().flatten().sum::<f64>() / expected_scores.len() as f64;
    assert!(mean < 0.0 && mean > -4.0, "a mean log-probability of {mean}");
    for (name, generated_ids, counts_and_ids, scores, bounds) in engines {
        for (prompt, (generated_ids, expected)) in prompts.iter().zip(generated_ids.iter().zip(&expected)) {
            assert_eq!(generated_ids, expected, "{name} after a prompt of {} tokens", prompt.len());
        }
        assert_eq!(counts_and_ids, expected_counts_and_ids, "{name}");
        if let Some(scores) = scores {
            assert_agree(&expected_scores, &scores, bounds, &name);
        }
    }
}

#[test]
fn engines_in_f32_reproduce_the_stored_reference_answers() {
    let _slot = slot();
    let engines = [engine_without_environment(), reference()];
    engines.iter().for_each(|name| assert_is_ready(name));
    let arguments =
        "-s decode --depth 0 --blocks 1 --iterations 1 --warmup 1 --new-tokens 2 --dtype f32 --no-setup";
    let arguments: Vec<&str> =
        ["-e", &engines[0], "-e", &engines[1]].into_iter().chain(arguments.split(' ')).collect();
    let (outcome, record) = measure(&arguments, |command| {
        command.env_remove("ORCHESTRATE_VERIFIER");
    });
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    // A run uses reference answers only if they belong to these weights and this text.
    let [stored] = record.entries("reference_answers")[..] else {
        panic!("no reference answers\nhint: cargo run --release -- model reference-answers embedded --force")
    };
    for name in &engines {
        let is_of_engine = |it: &&Value| it["configuration"] == record.configuration(name);
        let scored: Vec<&Value> = record.entries("scored").into_iter().filter(is_of_engine).collect();
        assert_eq!(scored.len(), stored["logprobs"].as_array().unwrap().len(), "{name}");
        for scored in scored {
            let sequence = scored["sequence"].as_u64().unwrap() as usize;
            let expected = stored["logprobs"][sequence].as_array().unwrap();
            let logprobs = scored["logprobs"].as_array().unwrap();
            let differences =
                logprobs.iter().zip(expected).map(|(a, b)| a.as_f64().unwrap() - b.as_f64().unwrap());
            let max = differences.map(f64::abs).fold(0.0, f64::max);
            assert!(logprobs.len() == expected.len() && max <= TOLERANCE, "{name}: {max}");
        }
        let continued: Vec<&Value> = record.entries("continued").into_iter().filter(is_of_engine).collect();
        assert_eq!(continued.len(), 1);
        assert_eq!(continued[0]["ids"], stored["continued"], "{name}");
    }
    assert!(
        record.entries("reference_token").iter().all(|it| it["verifier_token"] == it["engine_token"]),
        "{record:?}"
    );
}

// Use from a shell.

#[test]
fn one_request_line_gives_one_answer_line_with_all_iterations() {
    let _slot = slot();
    for name in cpu_engines() {
        let scratch = Scratch::new();
        let lines = scratch.join("lines");
        std::fs::write(&lines, "{\"prompt\":\"Hello\",\"iterations\":50}\n").unwrap();
        let mut command = with_user_setup(scratch.command(binary(&name)));
        command.env("ORCHESTRATE_THREADS", "1");
        let outcome = finish(command.stdin(std::fs::File::open(lines).unwrap()));
        assert_eq!((outcome.code, outcome.stdout.lines().count()), (Some(0), 1), "{name}: {outcome:?}");
        let answer: Value = serde_json::from_str(&outcome.stdout).unwrap();
        assert_eq!(answer["type"], "generated");
        assert_eq!(answer["iterations"].as_array().unwrap().len(), 50);
        assert!(answer["summary"].is_object(), "{name}: {answer}");
        scratch.assert_no_processes_left();
    }
}

#[test]
fn every_invalid_line_is_answered_with_failed_and_the_engine_continues() {
    let _slot = slot();
    let long = vec![b'a'; 20_000_000];
    let random_bytes: Vec<u8> = (0..4096_u32)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8)
        .filter(|&byte| byte != b'\n')
        .collect();
    let invalid_lines: [&[u8]; 10] = [
        b"<\"prompt\":\"Hello\",\"iterations\":50}",
        b"",
        &long,
        &random_bytes,
        b"{\"prompt\":\"Hello\",\"iterations\":-1}",
        b"{\"prompt\":\"Hello\",\"iterations\":1e300}",
        b"{\"prompt\":\"Hello\",\"max_new_tokens\":99999999999999999999999999}",
        b"{\"prompt\":\"Hello\"",
        b"[]",
        b"{\"type\":\"dance\"}",
    ];
    for name in cpu_engines() {
        let mut engine = Engine::start(&name);
        for line in invalid_lines {
            let start = String::from_utf8_lossy(&line[..line.len().min(60)]);
            let failed = engine.refusal(line);
            assert_eq!(failed.kind, FailureKind::BadRequest, "{name}, `{start}`: {failed:?}");
            assert!(failed.message.len() > 8, "{name}, `{start}`: {failed:?}");
        }
        assert!(engine.refusal(invalid_lines[4]).message.contains("iterations"));
        assert!(engine.refusal(invalid_lines[6]).message.contains("max_new_tokens"));
        let request = Generate { prompt: Some("Hello".into()), max_new_tokens: 2, ..Generate::default() };
        assert_eq!(engine.generated(request).iterations.len(), 1, "{name}");
    }
}

// The protocol.

#[test]
fn check_passes_on_every_cpu_engine_in_the_tree_and_on_the_smallest() {
    let _slot = slot();
    for engine in cpu_engines().iter().map(String::as_str).chain(["tests/smallest-engine.py"]) {
        assert_is_ready(engine);
        let scratch = Scratch::new();
        let outcome =
            finish(with_user_setup(scratch.orchestrate()).args(["check", engine]).current_dir(root()))
                .exits_with(0);
        outcome.assert_stdout(&["passed"]);
        scratch.assert_no_processes_left();
    }
}

#[test]
fn a_gpu_only_engine_reports_the_missing_driver() {
    for engine in engines_in_tree().iter().filter(|name| needs_driver(name)) {
        let scratch = Scratch::new();
        let mut check = scratch.orchestrate();
        check.args(["check", engine]).current_dir(root());
        let outcome =
            finish(check.env("LD_LIBRARY_PATH", crate::support::driver::absent(&scratch))).exits_with(4);
        outcome.assert_stderr(&["no NVIDIA driver found", "\nhint: "]);
    }
}

// Measurements of several engines.

#[test]
fn the_table_of_all_engines_fits_a_hundred_columns() {
    let _slot = slot();
    let names = cpu_engines();
    names.iter().for_each(|name| assert_is_ready(name));
    let (outcome, record) = measure(&["--all", "--no-setup", "--blocks", "1", "--iterations", "2"], |_| {});
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    for name in &names {
        assert!(outcome.stdout.lines().any(|line| line.contains(name)), "{}", outcome.stdout);
        assert_eq!(record.failures_of(name), Vec::<&Value>::new(), "{name}");
        assert_eq!(record.samples_of(name).len(), DEFAULT_SUITE_SAMPLES, "{name}");
    }
    assert_fits_100_columns(&outcome.stdout);
}

#[test]
fn other_engines_are_compared_with_the_reference() {
    let _slot = slot();
    let (other, reference) = (engine_without_environment(), reference());
    let engines = ["-e", &other, "-e", &reference, "-s", "decode", "--depth", "0"];
    let arguments = [&engines[..], &["--blocks", "1", "--iterations", "1", "--json", "-"]].concat();
    let (outcome, _) = measure(&arguments, |_| {});
    let report: Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!(report["reference"], reference, "{}", outcome.stderr);
}

#[test]
fn a_reference_without_environment_is_a_row_with_a_hint() {
    let (_slot, empty) = (slot(), Scratch::new());
    let (outcome, record) = measure(
        &["--all", "--no-setup", "-s", "decode", "--depth", "0", "--blocks", "1", "--iterations", "1"],
        |command| {
            set_empty_home(command, &empty);
        },
    );
    assert_reference_is_unavailable(&outcome, &record);
}

#[test]
fn the_manifest_and_hello_list_the_same_values_of_load() {
    let _slot = slot();
    for engine in Engine::start_all() {
        let manifest = manifest(&engine.name);
        let listed = |kind: &str| -> BTreeSet<String> {
            let names = manifest["load"][kind].as_array().unwrap();
            names.iter().map(|name| name.as_str().unwrap().to_string()).collect()
        };
        let (name, offered) = (&engine.name, engine.hello.capabilities.clone());
        assert_eq!(listed("dtypes"), offered.dtypes.into_iter().collect(), "{name}");
        let options: BTreeSet<String> = options_of(&manifest).keys().cloned().collect();
        assert_eq!(options, offered.options.unwrap().into_iter().collect(), "{name}");
        // An engine's program for one family of devices lists these alone, so the manifest may list more.
        let devices: BTreeSet<String> = offered.devices.into_iter().collect();
        assert!(devices.is_subset(&listed("devices")), "{name}: {devices:?}");
    }
}

#[test]
fn the_manifest_and_the_engine_accept_the_same_values_of_each_load_option() {
    let (_slot, scratch) = (slot(), Scratch::new());
    let intact = embedded::folder().unwrap();
    let broken = scratch.join("broken");
    copy_folder(&intact, &broken);
    std::fs::write(broken.join("model.safetensors"), "no weights").unwrap();
    for mut engine in Engine::start_all() {
        let name = engine.name.clone();
        let mut refuses = |model: &Path, option: &str, value: &str| {
            let failed = engine.load_with_option(model, (option, value)).err();
            failed.is_some_and(|it| {
                it.message.contains(&format!("`{option}`")) && it.message.contains("expected")
            })
        };
        for (option, values) in &options_of(&manifest(&name)) {
            let Some((accepted, refused)) = values_of(values) else { continue };
            // Many engines read their options before the weights. Then no value needs a complete load.
            let model = if refuses(&broken, option, &refused[0]) { &broken } else { &intact };
            for value in &refused {
                assert!(refuses(model, option, value), "{name}: {option}={value} is accepted");
            }
            for value in &accepted {
                assert!(!refuses(model, option, value), "{name}: {option}={value} is refused");
            }
        }
    }
}

#[test]
fn the_table_is_printed_without_environment_and_without_network() {
    let (_slot, empty) = (slot(), Scratch::new());
    let (outcome, record) = measure(
        &["--all", "-s", "decode", "--depth", "0", "--blocks", "1", "--iterations", "1"],
        |command| {
            set_empty_home(command, &empty);
            let cache = root().join("target/tmp/no-such-cache");
            // No network, and no cache of uv or pip.
            command.env("UV_OFFLINE", "1").env("UV_CACHE_DIR", cache).env_remove("UV_FIND_LINKS");
            command.env("PIP_NO_INDEX", "1").env("PIP_NO_CACHE_DIR", "1").env_remove("PIP_FIND_LINKS");
        },
    );
    assert_reference_is_unavailable(&outcome, &record);
    let message = record.failures_of(&reference())[0]["message"].as_str().unwrap();
    // The message must have the cause (too little disk space, or a package that the tool cannot find or fetch), not only
    // the first line that the tool prints.
    let causes = [
        " are needed",
        "Could not find a version",
        "No matching distribution",
        "offline",
        "Failed to fetch",
        "not found in the",
    ];
    assert!(causes.iter().any(|cause| message.contains(cause)), "{message}");
}

#[test]
fn the_reference_can_be_measured_with_one_process_per_request() {
    let _slot = slot();
    let reference = reference();
    let (outcome, record) = measure(
        &[
            "-e",
            &reference,
            "--mode",
            "one-shot",
            "-s",
            "decode",
            "--depth",
            "0",
            "--blocks",
            "1",
            "--iterations",
            "2",
        ],
        |_| {},
    );
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let launches: Vec<_> =
        record.samples_of(&reference).iter().map(|sample| sample["launch"].clone()).collect();
    assert_eq!(launches, [0, 1]);
}

#[test]
fn the_smallest_engine_is_measured_by_its_path() {
    let _slot = slot();
    let other = engine_without_environment();
    let (outcome, record) = measure(
        &["-e", "tests/smallest-engine.py", "-e", &other, "--blocks", "1", "--iterations", "2"],
        |_| {},
    );
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    for name in ["smallest-engine.py", &other] {
        assert_eq!(record.samples_of(name).len(), DEFAULT_SUITE_SAMPLES, "{name}");
    }
    assert_fits_100_columns(&outcome.stdout);
}

/// The load options of a manifest, each with its values.
fn options_of(manifest: &toml::Table) -> toml::Table {
    manifest["load"]["options"].as_table().unwrap().clone()
}

/// Values of a load option that a manifest accepts, and values that it refuses. `None`: the engine decides.
fn values_of(values: &toml::Value) -> Option<(Vec<String>, Vec<String>)> {
    Some(match values {
        toml::Value::String(any) if any == "any" => return None,
        toml::Value::String(_) => (vec!["true".into(), "false".into()], vec!["yes".into()]),
        toml::Value::Array(texts) => {
            let texts = texts.iter().map(|text| text.as_str().unwrap().to_string());
            (texts.collect(), vec!["no-such-value".into()])
        }
        range => {
            let end = |name: &str| Some(range.get(name)?.as_integer().unwrap());
            let (min, max) = (end("min").unwrap(), end("max"));
            let texts =
                |values: [Option<i64>; 2]| values.into_iter().flatten().map(|it| it.to_string()).collect();
            (texts([Some(min), max]), texts([Some(min - 1), max.map(|max| max + 1)]))
        }
    })
}

/// The engines in the tree that compute on the CPU, the reference first.
fn cpu_engines() -> Vec<String> {
    engines_in_tree().into_iter().filter(|name| !needs_driver(name)).collect()
}

fn measure(arguments: &[&str], change: impl FnOnce(&mut Command)) -> (Outcome, Record) {
    let scratch = Scratch::new();
    let mut command = with_user_setup(scratch.orchestrate());
    // PyTorch's threads wait for each other in busy loops, which takes very long on a busy machine.
    command.args(arguments).args(["--threads", "1"]).current_dir(root());
    command.arg("--results").arg(scratch.results());
    change(&mut command);
    let outcome = finish(&mut command);
    scratch.assert_no_processes_left();
    let record = Record::only_one_in(&scratch.results());
    (outcome, record)
}

/// Gives the command an empty data directory.
fn set_empty_home(command: &mut Command, scratch: &Scratch) {
    command.env("ORCHESTRATE_HOME", scratch.join("empty-home"));
}

fn assert_reference_is_unavailable(outcome: &Outcome, record: &Record) {
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let (other, reference) = (engine_without_environment(), reference());
    assert_eq!(record.samples_of(&other).len(), 1);
    let failure = record.failure_of(&reference);
    assert_eq!(failure["kind"], "unavailable", "{failure}");
    assert!(failure["message"].as_str().unwrap().contains("environment"), "{failure}");
    assert!(failure["hint"].as_str().unwrap().contains(&format!("setup {reference}")), "{failure}");
    outcome.assert_stdout(&["unavailable: ", &other]);
    // One command sets up all engines that need it, on one line or more.
    let mut commands = outcome.stdout.split('`').filter(|it| it.starts_with("orchestrate setup "));
    let names_reference = commands.any(|it| it.split_whitespace().any(|word| word == reference));
    assert!(names_reference, "{}", outcome.stdout);
    assert_fits_100_columns(&outcome.stdout);
}

fn assert_fits_100_columns(table: &str) {
    assert!(table.lines().count() > 5, "{table}");
    for line in table.lines() {
        assert!(line.chars().count() <= 100, "{} columns: {line}\n{table}", line.chars().count());
    }
}

/// `count` token ids: the BOS of the model, then the held-out text from token `start`.
fn heldout_ids(start: usize, count: usize) -> Vec<u32> {
    let folder = ModelFolder::open(embedded::folder().unwrap()).unwrap();
    let tokenizer = folder.tokenizer().unwrap();
    let bos = tokenizer.encode("").unwrap();
    let ids = tokenizer.encode(&embedded::heldout_text().unwrap()).unwrap().split_off(bos.len());
    let after_start = ids.iter().cycle().skip(start).take(count - bos.len());
    bos.iter().chain(after_start).copied().collect()
}
