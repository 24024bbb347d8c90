//! Limits of the machine in the record of a run. They are not probed for a model whose weights are under four times as large as
//! the largest cache.

use serde_json::{Value, json};

use crate::support::models::write_sparse_model;
use crate::support::record::Record;
use crate::support::{DECODE, Outcome, Scratch, fake_engine, finish};

fn run(scratch: &Scratch, words: &[&str]) -> (Outcome, Record) {
    let mut command = scratch.orchestrate();
    command.arg("-e").arg(fake_engine()).args(DECODE).args(["--iterations", "1", "--threads", "1"]);
    if !words.contains(&"--blocks") {
        command.args(["--blocks", "2"]);
    }
    command.args(words).arg("--results").arg(scratch.results());
    let outcome = finish(command.current_dir(&scratch.path)).exits_with(0);
    let record = Record::only_one_in(&scratch.results());
    (outcome, record)
}

/// Writes a model, `large`, whose weights of 243 MB fit into no usual cache.
fn write_large_model(scratch: &Scratch) {
    let config = json!({
        "model_type": "llama", "hidden_size": 1024, "num_hidden_layers": 2, "num_attention_heads": 16,
        "intermediate_size": 8192, "vocab_size": 2048, "max_position_embeddings": 512, "tie_word_embeddings": true
    });
    write_sparse_model(&scratch.join("large"), &config);
    let small = scratch.synth("tiny-llama", "bf16", "small");
    std::fs::copy(small.join("tokenizer.json"), scratch.join("large/tokenizer.json")).unwrap();
}

#[test]
fn limits_are_probed_around_each_block_while_no_engine_runs() {
    let scratch = Scratch::new();
    write_large_model(&scratch);
    let (_, record) = run(&scratch, &["-m", "large"]);
    let header = &record.0[0];
    // The weights are f32.
    let weight_bytes =
        4 * header["plan"]["configurations"][0]["model"]["sizes"]["read_per_token"].as_u64().unwrap();
    let caches = header["machine"]["cpu"]["caches"].as_array().unwrap();
    // Weights under four times the largest cache (if unknown: 256 MiB) may be cached; then nothing is probed.
    let cache_bytes =
        caches.iter().map(|cache| cache["size_bytes"].as_u64().unwrap()).max().unwrap_or(256 << 20);
    let is_probed = weight_bytes >= 4 * cache_bytes;
    let limits = record.entries("limits");
    let blocks: Vec<u64> = limits.iter().map(|it| it["block"].as_u64().unwrap()).collect();
    assert_eq!(blocks, if is_probed { vec![0, 1, 2] } else { vec![] });
    for probed in limits {
        let units = probed["units"].as_array().unwrap();
        assert!(
            units.iter().any(|unit| unit["unit"] == "f32_fma" && unit["ns"].as_u64() > Some(0)),
            "{probed}"
        );
        assert!(units.iter().all(|unit| unit["threads"] == 1), "{probed}");
    }
    let step = |it: &Value| match it["entry"].as_str() {
        Some("limits") => Some(format!("limits {}", it["block"])),
        Some("launch") => Some(format!("launch {}", it["block"])),
        Some("end") => Some("end".into()),
        _ => None,
    };
    let order: Vec<String> = record.0.iter().filter_map(step).collect();
    let expected = ["limits 0", "launch 0", "limits 1", "launch 1", "limits 2", "end"];
    let expected = expected.into_iter().filter(|it| is_probed || !it.starts_with("limits"));
    assert_eq!(order, expected.collect::<Vec<_>>());
}

/// The engine answers at once, so its times imply rates far above those of the machine. Even two probes on a busy machine show
/// that.
#[test]
fn a_rate_that_no_machine_reaches_is_contradicted_after_one_block() {
    let scratch = Scratch::new();
    write_large_model(&scratch);
    let (outcome, record) = run(&scratch, &["-m", "large", "--blocks", "1", "--format", "json"]);
    let (report, probes) = (outcome.json(), record.entries("limits").len());
    let warnings = report["warnings"].as_array().unwrap().iter().map(|it| it.as_str().unwrap());
    let about_rates = warnings.filter(|it| it.contains("this run's best probe")).count();
    assert_eq!((probes, about_rates), if probes == 0 { (0, 0) } else { (2, 1) }, "{}", report["warnings"]);
    assert!(probes == 0 || report["cases"][0]["contradicted"] == true, "{report}");
}

#[test]
fn a_model_that_fits_the_caches_is_measured_without_probes_and_with_a_note() {
    let scratch = Scratch::new();
    // Without `--full`, the warnings of a busy machine may leave no room for the note.
    let (outcome, record) = run(&scratch, &["--full"]);
    assert!(record.entries("limits").is_empty());
    let is_note = |line: &&str| line.starts_with("no share of the machine's limit: weights under");
    assert_eq!(outcome.stdout.lines().filter(is_note).count(), 1, "{}", outcome.stdout);
    assert!(!outcome.stdout.lines().any(|line| line.trim_end().ends_with("limit")), "{}", outcome.stdout);
}
