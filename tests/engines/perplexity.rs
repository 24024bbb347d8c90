//! The scenario `perplexity` with real engines. In f32 they agree with each other, and with a computation that shares no code with
//! them.

use std::path::PathBuf;

use model_files::embedded;
use paths::Python;
use serde_json::Value;

use crate::engine::{assert_is_ready, slot, with_user_setup};
use crate::support::{Scratch, finish, root};

/// The largest relative difference between two perplexities of the same model in f32.
const MAX_DIFFERENCE: f64 = 1e-3;
/// Rows that compute in f32, in weights, arithmetic and cache.
const ROWS: [&str; 5] = ["pytorch-baseline", "lmrs:exact", "candle", "transformers", "llama-cpp:f32"];
const WINDOW: usize = 512;
const WINDOWS: usize = 8;

/// The interpreter with PyTorch and transformers.
fn python() -> PathBuf {
    let requirements = root().join("engines/environments/pytorch/requirements.txt");
    let requirements = std::fs::read_to_string(requirements).unwrap();
    match paths::python("transformers", "pytorch", &requirements).unwrap() {
        Python::Pinned(python) => python,
        Python::Own(own) => own.interpreter,
        Python::NotSetUp => panic!("hint: cargo run --release -- setup transformers"),
    }
}

/// The number of scored tokens and the perplexity, without an engine.
fn by_plain_pytorch(scratch: &Scratch) -> (u64, f64) {
    let folder = embedded::folder().unwrap();
    let mut command = scratch.command(python());
    command.arg(root().join("tests/engines/perplexity.py")).arg(&folder).arg(folder.join("heldout.txt"));
    let outcome = finish(command.args([WINDOW, WINDOWS].map(|it| it.to_string()))).exits_with(0);
    let (tokens, perplexity) = outcome.stdout.trim().split_once(' ').unwrap();
    (tokens.parse().unwrap(), perplexity.parse().unwrap())
}

#[test]
fn the_perplexity_in_f32_agrees_between_engines_and_with_a_computation_without_them() {
    let (_slot, scratch) = (slot(), Scratch::new());
    ROWS.iter().for_each(|row| assert_is_ready(row.split(':').next().unwrap()));
    let (tokens, expected) = by_plain_pytorch(&scratch);
    let mut command = with_user_setup(scratch.orchestrate());
    command.args(ROWS.iter().flat_map(|row| ["-e", row])).args(["-s", "perplexity", "--json", "-"]);
    let (window, windows) = (WINDOW.to_string(), WINDOWS.to_string());
    command.args(["--prompt-tokens", &window, "--iterations", &windows]);
    command.args(["--verifier", ROWS[0], "--no-setup", "--threads", "1"]);
    let outcome = finish(command.arg("--results").arg(scratch.results()).current_dir(root()));
    let report: Value = serde_json::from_str(&outcome.stdout).unwrap_or_else(|_| panic!("{outcome:?}"));
    let mut perplexities = Vec::new();
    for row in ROWS {
        let mut cases = report["cases"].as_array().unwrap().iter();
        let case = cases.find(|it| it["engine"]["label"] == row).unwrap_or_else(|| panic!("{outcome:?}"));
        let value = |name: &str| {
            let mut metrics = case["metrics"].as_array().unwrap_or_else(|| panic!("{case}")).iter();
            let found =
                metrics.find(|it| it["metric"] == name).unwrap_or_else(|| panic!("no {name}: {case}"));
            found["estimate"].as_f64().unwrap()
        };
        assert_eq!(case["scored_text"]["tokens"], tokens, "{case}");
        let found = value("perplexity");
        println!("{row}: {found}, without engines {expected}; drift {}", value("drift"));
        assert!(
            (found / expected - 1.0).abs() < MAX_DIFFERENCE,
            "{row}: {found}, without engines {expected}"
        );
        perplexities.push(found);
        assert!(value("perplexity_change").abs() < MAX_DIFFERENCE, "{case}");
        assert!(value("drift") < 1e-3, "{case}");
    }
    let largest = perplexities.iter().copied().fold(f64::MIN, f64::max);
    let smallest = perplexities.iter().copied().fold(f64::MAX, f64::min);
    assert!(largest / smallest - 1.0 < MAX_DIFFERENCE, "{perplexities:?}");
}
