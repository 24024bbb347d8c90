//! Tests that chosen effects change the reported times by the formula of their setting, and that these times are true.

#![expect(clippy::unwrap_used, reason = "a test that cannot continue panics")]

mod support;

use std::io::Write;
use std::process::Stdio;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use support::{GENERATE, command_of};

/// The token times of each request of one launch without waits, in nanoseconds from the start of the iteration.
fn launch_times(settings: Value, requests: usize) -> Vec<Vec<u64>> {
    let mut settings = settings;
    settings["real_sleep"] = false.into();
    generated(&settings, requests).iter().map(times).collect()
}

fn generated(settings: &Value, requests: usize) -> Vec<Value> {
    let mut command = command_of(env!("CARGO_BIN_EXE_fake-engine"));
    command.env("FAKE_ENGINE", settings.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let lines = format!("{GENERATE}\n").repeat(requests);
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", output.status);
    let answers = output.stdout.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
    answers.map(|line| serde_json::from_slice(line).unwrap()).collect()
}

fn times(generated: &Value) -> Vec<u64> {
    let iteration = &generated["iterations"][0];
    let start_ns = iteration["start_ns"].as_u64().unwrap();
    let times = iteration["sequences"][0]["token_ns"].as_array().unwrap();
    times.iter().map(|ns| ns.as_u64().unwrap() - start_ns).collect()
}

/// The factor by which a chosen effect multiplied the times of `script`. It must be the same for the first token and between
/// tokens.
fn factor(times: &[u64]) -> f64 {
    let (first, between) = (times[0] as f64 / 2e7, (times[5] - times[0]) as f64 / (5.0 * 2e6));
    assert!((first - between).abs() < 1e-6, "{times:?}");
    first
}

/// A script with times that are so long that rounding to nanoseconds does not matter.
fn script(chosen: Value) -> Value {
    let mut script = json!({ "first_token_ns": 20_000_000, "per_token_ns": 2_000_000 });
    script.as_object_mut().unwrap().extend(chosen.as_object().unwrap().clone());
    script
}

#[test]
fn a_chosen_slowdown_scales_every_token_time() {
    let times = launch_times(script(json!({ "slower_percent": 5 })), 2);
    assert_eq!(times, [[21_000_000, 23_100_000, 25_200_000, 27_300_000, 29_400_000, 31_500_000]; 2]);
    assert_eq!(factor(&launch_times(script(json!({ "slower_percent": -50 })), 1)[0]), 0.5);
}

#[test]
fn a_drift_starts_at_the_given_time_and_not_with_the_process() {
    let unix_ns = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    let from_ns = unix_ns() - 100_000_000_000;
    let began = unix_ns();
    let times = launch_times(script(json!({ "drift_percent_per_second": 1, "drift_from_ns": from_ns })), 1);
    let factor_at = |now: u64| 1.0 + 0.01 * (now - from_ns) as f64 / 1e9;
    let measured = factor(&times[0]);
    assert!(factor_at(began) - 1e-6 < measured && measured < factor_at(unix_ns()) + 1e-6, "{measured}");
}

#[test]
fn launch_noise_differs_between_launches_and_request_noise_between_requests() {
    let factors = |chosen: Value| -> Vec<f64> {
        launch_times(script(chosen), 3).iter().map(|times| factor(times)).collect()
    };
    let (one, two) = (factors(json!({ "noise_percent": 10 })), factors(json!({ "noise_percent": 10 })));
    assert!(one.iter().all(|it| *it == one[0]) && two.iter().all(|it| *it == two[0]), "{one:?} {two:?}");
    assert_ne!(one[0], two[0]);
    let one = factors(json!({ "request_noise_percent": 10 }));
    assert!(one[0] != one[1] && one[1] != one[2] && one[0] != one[2], "{one:?}");
    let seeded = || factors(json!({ "noise_percent": 10, "request_noise_percent": 5, "noise_seed": 3 }));
    assert_eq!(seeded(), seeded());
}

#[test]
fn chosen_delays_take_real_time() {
    let start = Instant::now();
    let chosen = script(json!({ "slower_percent": 100 }));
    let answers = generated(&chosen, 2);
    let elapsed_ns = start.elapsed().as_nanos() as u64;
    let end_ns = |generated: &Value| generated["iterations"][0]["end_ns"].as_u64().unwrap();
    // A slowed request takes 60 ms. Times count from the reading of the request, and the second request is read before the
    // first is answered.
    assert!(
        answers.iter().all(|it| end_ns(it) > 60_000_000 && end_ns(it) <= elapsed_ns),
        "{elapsed_ns} {answers:?}"
    );
}
