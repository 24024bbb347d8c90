//! Tests that the whole program finds planted effects, and only those: a slowdown above the noise, none below it, and the
//! right ratio on a machine that becomes slower. Random numbers have a seed: without one, a verdict that is wrong one
//! time in a hundred would fail a test as often.

use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::support::{Scratch, finish};

/// The comparison of the second engine with the first, by the decode rate.
fn compared(scratch: &Scratch, engines: [&PathBuf; 2], options: &[&str]) -> Value {
    let mut command = scratch.orchestrate();
    command
        .args(["-s", "decode", "--warmup", "1", "--json", "-", "--results"])
        .arg(scratch.results())
        .args(options);
    for engine in engines {
        command.arg("-e").arg(engine);
    }
    let outcome = finish(&mut command).exits_with(0);
    let report = outcome.json();
    let comparisons = report["comparisons"].as_array().unwrap();
    let of_headline: Vec<&Value> = comparisons.iter().filter(|it| it["is_headline"] == true).collect();
    assert_eq!(of_headline.len(), 1, "{report:#}");
    of_headline[0].clone()
}

/// Long enough that rounding to nanoseconds does not matter.
const TOKENS: &str = "--per-token-ns 20000 --first-token-ns 100000";

fn five_percent(noise: &str) -> Value {
    let scratch = Scratch::new();
    let one = scratch.engine("one", &format!("{TOKENS} {noise}"));
    let other = scratch.engine("other", &format!("{TOKENS} {noise} --slower-percent 5"));
    compared(&scratch, [&one, &other], &["--iterations", "1"])
}

#[test]
fn a_slowdown_of_five_percent_is_found_when_launches_differ_by_less() {
    for noise in ["", "--noise-percent 0.3 --request-noise-percent 0.3 --noise-seed 1"] {
        let found = five_percent(noise);
        assert_eq!(found["verdict"], "slower", "{found:#}");
        let ratio = found["ratio"].as_f64().unwrap();
        assert!((ratio - 1.0 / 1.05).abs() < 0.01, "{found:#}");
        assert!(found["high"].as_f64().unwrap() < 1.0, "{found:#}");
    }
}

#[test]
fn a_slowdown_is_inconclusive_when_launches_differ_by_much_more() {
    for seed in 1..=3 {
        let found = five_percent(&format!("--noise-percent 20 --noise-seed {seed}"));
        assert_eq!(found["verdict"], "inconclusive", "{found:#}");
        // The twin of the reference shows the smallest difference that counts.
        assert!(found["epsilon"].as_f64().unwrap() > 0.05, "{found:#}");
    }
}

#[test]
fn an_engine_compared_with_itself_is_never_faster_or_slower() {
    let scratch = Scratch::new();
    let one = scratch.engine("one", TOKENS);
    let found = compared(&scratch, [&one, &scratch.engine("other", TOKENS)], &["--iterations", "1"]);
    assert_eq!((&found["verdict"], found["ratio"].as_f64()), (&"same".into(), Some(1.0)), "{found:#}");
    let noisy = format!("{TOKENS} --noise-percent 10 --noise-seed 1");
    let scratch = Scratch::new();
    let one = scratch.engine("one", &noisy);
    let found = compared(&scratch, [&one, &scratch.engine("other", &noisy)], &["--iterations", "1"]);
    assert!(["same", "inconclusive"].contains(&found["verdict"].as_str().unwrap()), "{found:#}");
}

/// Compares an engine with one that is a quarter faster, on a machine on which all times grow by half in each second.
fn on_a_drifting_machine(order: &str) -> Value {
    let scratch = Scratch::new();
    let from_ns = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos();
    let drift = format!(
        "--per-token-ns 400000 --first-token-ns 100000 --drift-percent-per-second 50 --drift-from-ns {from_ns}"
    );
    let one = scratch.engine("one", &drift);
    let other = scratch.engine("other", &format!("{drift} --slower-percent -20"));
    let options = ["--order", order, "--blocks", "6", "--iterations", "4", "--max-new-tokens", "24"];
    compared(&scratch, [&one, &other], &options)
}

#[test]
fn interleaved_requests_give_the_right_ratio_on_a_machine_that_slows_down() {
    let in_turn = on_a_drifting_machine("interleaved");
    let ratio = in_turn["ratio"].as_f64().unwrap();
    assert!((ratio - 1.25).abs() < 0.08, "{in_turn:#}");
    assert_eq!(in_turn["verdict"], "faster", "{in_turn:#}");
    // The later engine appears slower by the drift, and the data do not show the reason.
    let one_after_the_other = on_a_drifting_machine("sequential");
    let ratio = one_after_the_other["ratio"].as_f64().unwrap();
    assert!(ratio < 1.1, "{one_after_the_other:#}");
    // So there is no verdict.
    assert_eq!(one_after_the_other["verdict"], Value::Null, "{one_after_the_other:#}");
}
