//! Runs the program with an emulated GPU, and compares its answers with those of the CPU. Libraries that stand in for NVIDIA's
//! run the kernels in `cuda-emulation`, so the test needs no GPU.
#![cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
#![expect(clippy::unwrap_used, reason = "tests panic")]

use std::path::Path;

use engine_kit::protocol::{Message, parse_message};
use model_files::{Tokenizer, embedded};
use serde_json::{Value, json};

const BUILD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cuda-emulation/libraries/build");

/// The answers to these requests, without progress and streamed tokens. `libraries` is the folder of the emulated GPU.
fn answers(libraries: &Path, requests: &[Value]) -> Vec<Message> {
    let lines: Vec<String> = requests.iter().map(ToString::to_string).collect();
    let output = duct::cmd!(env!("CARGO_BIN_EXE_lmrs"))
        .env("LD_LIBRARY_PATH", libraries)
        .env("EMULATED_IMAGES", libraries)
        .env("ORCHESTRATE_HOME", libraries.join("home"))
        .stdin_bytes(lines.join("\n"))
        .stdout_capture()
        .stderr_capture()
        .unchecked()
        .run()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = output.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let messages = lines.map(|line| parse_message(line).unwrap());
    messages.filter(|message| !matches!(message, Message::Progress(_) | Message::Token(_))).collect()
}

/// The largest difference of a log-probability that is accepted.
const TOLERANCE: f64 = 0.08;

fn generate(prompts: &[Vec<u32>], count: usize) -> Value {
    json!({"type": "generate", "prompts_ids": prompts, "max_new_tokens": count, "ignore_eos": true})
}

fn score(sequences: &[Vec<u32>]) -> Value {
    json!({"type": "score", "sequences": sequences})
}

fn output_ids(message: &Message) -> Vec<Vec<u32>> {
    let Message::Generated(generated) = message else { panic!("not generated: {message:?}") };
    generated.iterations[0].sequences.iter().map(|sequence| sequence.output_ids.clone().unwrap()).collect()
}

fn logprobs(message: &Message) -> Vec<Vec<f64>> {
    let Message::Scored(scored) = message else { panic!("not scored: {message:?}") };
    scored.logprobs.iter().map(|logprobs| logprobs.iter().map(|logprob| logprob.unwrap()).collect()).collect()
}

#[test]
fn an_emulated_gpu_answers_as_the_cpu() {
    if !duct::cmd!("g++", "--version")
        .stdout_null()
        .stderr_null()
        .unchecked()
        .run()
        .is_ok_and(|it| it.status.success())
    {
        eprintln!("skipped: g++ is not installed");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    duct::cmd!(BUILD, folder.path()).run().unwrap();
    let tokenizer = Tokenizer::open(&embedded::folder().unwrap().join("tokenizer.json")).unwrap();
    let text = tokenizer.encode(&embedded::heldout_text().unwrap()).unwrap();
    let ids = |first: usize, count: usize| text[first..first + count].to_vec();
    let prompts: Vec<Vec<u32>> = (0..10).map(|index| ids(100 * index, 3 + 5 * index)).collect();
    // The prompts and a token of all ten are passes of many rows. A token of one sequence and the short text are steps.
    let requests = |device: &str| {
        [
            json!({"type": "load", "model": "embedded", "threads": 2, "device": device}),
            generate(&[ids(2000, 70)], 8),
            generate(&prompts, 4),
            score(&[ids(3000, 75), ids(4000, 5)]),
        ]
    };
    let expected = answers(folder.path(), &requests("cpu"));
    let found = answers(folder.path(), &requests("cuda:0"));
    assert!(
        matches!(&found[..], [Message::Loaded(loaded), ..] if loaded.facts.device.as_deref() == Some("cuda:0"))
    );

    // Where an id differs, the CPU's scores of both ids are almost the same: activations of many rows are rounded to bf16.
    let mut pairs = Vec::new();
    for (index, prompts) in [(1, vec![ids(2000, 70)]), (2, prompts.clone())] {
        for ((prompt, found), expected) in
            prompts.iter().zip(output_ids(&found[index])).zip(output_ids(&expected[index]))
        {
            assert_eq!(found.len(), expected.len());
            if let Some(at) = (0..found.len()).find(|at| found[*at] != expected[*at]) {
                pairs.extend([&found, &expected].map(|ids| [prompt, &ids[..=at]].concat()));
            }
        }
    }
    assert!(pairs.len() <= 6, "{pairs:?}");
    if !pairs.is_empty() {
        let [load, ..] = requests("cpu");
        let scores = answers(folder.path(), &[load, score(&pairs)]);
        let last: Vec<f64> =
            logprobs(&scores[1]).iter().filter_map(|logprobs| logprobs.last().copied()).collect();
        for pair in last.chunks_exact(2) {
            assert!((pair[0] - pair[1]).abs() < TOLERANCE, "{last:?} for {pairs:?}");
        }
    }
    for (found, expected) in logprobs(&found[3]).iter().flatten().zip(logprobs(&expected[3]).iter().flatten())
    {
        assert!((found - expected).abs() < TOLERANCE, "{found} instead of {expected}");
    }
}
