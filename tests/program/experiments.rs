//! Tests that the whole program finds chosen effects and no others: a slowdown above the noise, none below it, and the right
//! ratio on a machine that becomes slower. Noise has a fixed seed. With a new seed in each run, the wrong verdicts that
//! statistics allows would make tests fail now and then.

use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::support::{DECODE, Scratch, finish};

/// The comparison of the second engine with the first, by the decode rate.
fn compare(scratch: &Scratch, engines: [&PathBuf; 2], options: &[&str]) -> Value {
    let mut command = scratch.orchestrate();
    command
        .args(DECODE)
        .args(["--warmup", "1", "--json", "-", "--results"])
        .arg(scratch.results())
        .args(options);
    for engine in engines {
        command.arg("-e").arg(engine);
    }
    let outcome = finish(&mut command).exits_with(0);
    let report = outcome.json();
    let comparisons = report["comparisons"].as_array().unwrap();
    let headlines: Vec<&Value> = comparisons.iter().filter(|it| it["is_headline"] == true).collect();
    assert_eq!(headlines.len(), 1, "{report:#}");
    headlines[0].clone()
}

/// Token times that are so long that rounding to nanoseconds does not matter.
const TOKEN_TIMES: &str = "--per-token-ns 20000 --first-token-ns 100000";

/// Compares an engine with one that is five percent slower.
fn compare_five_percent_slower(noise: &str) -> Value {
    let scratch = Scratch::new();
    let first = scratch.engine("first", &format!("{TOKEN_TIMES} {noise}"));
    let second = scratch.engine("second", &format!("{TOKEN_TIMES} {noise} --slower-percent 5"));
    compare(&scratch, [&first, &second], &["--iterations", "1"])
}

#[test]
fn a_slowdown_of_five_percent_is_found_when_launches_differ_by_less() {
    for noise in ["", "--noise-percent 0.3 --request-noise-percent 0.3 --noise-seed 1"] {
        let comparison = compare_five_percent_slower(noise);
        assert_eq!(comparison["verdict"], "slower", "{comparison:#}");
        let ratio = comparison["ratio"].as_f64().unwrap();
        assert!((ratio - 1.0 / 1.05).abs() < 0.01, "{comparison:#}");
        assert!(comparison["high"].as_f64().unwrap() < 1.0, "{comparison:#}");
    }
}

#[test]
fn a_slowdown_is_inconclusive_when_launches_differ_by_much_more() {
    for seed in 1..=3 {
        let comparison = compare_five_percent_slower(&format!("--noise-percent 20 --noise-seed {seed}"));
        assert_eq!(comparison["verdict"], "inconclusive", "{comparison:#}");
        // The twin of the reference shows the smallest difference that counts.
        assert!(comparison["threshold"].as_f64().unwrap() > 0.05, "{comparison:#}");
    }
}

#[test]
fn an_engine_compared_with_itself_is_never_faster_or_slower() {
    let scratch = Scratch::new();
    let first = scratch.engine("first", TOKEN_TIMES);
    let comparison =
        compare(&scratch, [&first, &scratch.engine("second", TOKEN_TIMES)], &["--iterations", "1"]);
    assert_eq!(
        (&comparison["verdict"], comparison["ratio"].as_f64()),
        (&"same".into(), Some(1.0)),
        "{comparison:#}"
    );
    let noisy = format!("{TOKEN_TIMES} --noise-percent 10 --noise-seed 1");
    let scratch = Scratch::new();
    let first = scratch.engine("first", &noisy);
    let comparison = compare(&scratch, [&first, &scratch.engine("second", &noisy)], &["--iterations", "1"]);
    assert!(["same", "inconclusive"].contains(&comparison["verdict"].as_str().unwrap()), "{comparison:#}");
}

/// Compares an engine with one that is a quarter faster, on a machine on which all times grow in each second by half of their
/// first value.
fn compare_on_a_drifting_machine(order: &str) -> Value {
    let scratch = Scratch::new();
    let from_ns = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos();
    let drift = format!(
        "--per-token-ns 400000 --first-token-ns 100000 --drift-percent-per-second 50 --drift-from-ns {from_ns}"
    );
    let first = scratch.engine("first", &drift);
    let second = scratch.engine("second", &format!("{drift} --slower-percent -20"));
    let options = ["--order", order, "--blocks", "6", "--iterations", "4", "--max-new-tokens", "24"];
    compare(&scratch, [&first, &second], &options)
}

#[test]
fn interleaved_requests_give_the_right_ratio_on_a_machine_that_slows_down() {
    let interleaved = compare_on_a_drifting_machine("interleaved");
    let ratio = interleaved["ratio"].as_f64().unwrap();
    assert!((ratio - 1.25).abs() < 0.08, "{interleaved:#}");
    assert_eq!(interleaved["verdict"], "faster", "{interleaved:#}");
    // In sequential order, the drift makes the second engine look slower than it is, and the data do not show the reason.
    let sequential = compare_on_a_drifting_machine("sequential");
    let ratio = sequential["ratio"].as_f64().unwrap();
    assert!(ratio < 1.1, "{sequential:#}");
    // A run in sequential order has no verdict.
    assert_eq!(sequential["verdict"], Value::Null, "{sequential:#}");
}
