//! Planted effects: a slowdown, a drift over several launches, a machine of two speeds, or noise in the token times, as a test
//! sets them. The true effect is known, so a test can check the orchestrator's result.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::answer::{mix, normal};
use crate::script::Script;

/// The facts of one launch on which chosen effects depend.
#[derive(Debug, Clone, Copy)]
pub struct Launch {
    seed: u64,
    /// The number of the launch in its run; 0 without a run.
    number: u64,
    began_unix_ns: u64,
}

impl Launch {
    /// The launch of this process, with a new seed.
    pub fn begin() -> Self {
        let began_unix_ns = unix_ns();
        let seed = mix(began_unix_ns ^ mix(u64::from(std::process::id())));
        let launch = std::env::var("ORCHESTRATE_LAUNCH").ok();
        let number = launch.and_then(|launch| launch.rsplit('/').next()?.parse().ok());
        Self { seed, number: number.unwrap_or(0), began_unix_ns }
    }

    /// The factor on the token times of one iteration of a request: from the slowdown, from the drift and the speed of the
    /// machine at the iteration's start, and from the noise of the launch and of the iteration.
    pub fn factor(&self, script: &Script, request: u64, iteration: u64) -> f64 {
        let now_ns = unix_ns();
        let from_ns = script.value("drift_from_ns").as_u64().unwrap_or(self.began_unix_ns);
        let seconds = now_ns.saturating_sub(from_ns) as f64 / 1e9;
        let drift = 1.0 + fraction(script, "drift_percent_per_second") * seconds;
        self.constant_factor(script, request, iteration) * drift.max(0.0) * machine_factor(script, now_ns)
    }

    fn constant_factor(&self, script: &Script, request: u64, iteration: u64) -> f64 {
        let seed = script.value("noise_seed").as_u64().map_or(self.seed, |seed| mix(seed ^ mix(self.number)));
        let of_launch = normal(seed) * fraction(script, "noise_percent").ln_1p();
        let of_iteration = normal(mix(seed ^ mix(request)) ^ mix(!iteration))
            * fraction(script, "request_noise_percent").ln_1p();
        (1.0 + fraction(script, "slower_percent")) * (of_launch + of_iteration).exp()
    }
}

/// The factor of a machine of two speeds. The speed depends only on the time, so all engines have the same speed at one time.
fn machine_factor(script: &Script, now_ns: u64) -> f64 {
    let phase_ns = script.value("phase_ms").as_u64().unwrap_or(1000).max(1) * 1_000_000;
    let is_slow = mix(now_ns / phase_ns) % 2 == 1;
    if is_slow { 1.0 + fraction(script, "slow_phase_percent") } else { 1.0 }
}

fn fraction(script: &Script, setting: &str) -> f64 {
    script.value(setting).as_f64().unwrap_or(0.0) / 100.0
}

fn unix_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn script(settings: Value) -> Script {
        let mut script = Script::default();
        script.apply(settings.as_object().unwrap()).unwrap();
        script
    }

    #[test]
    fn without_effects_the_time_factor_is_one() {
        assert_eq!(Launch::begin().factor(&Script::default(), 3, 1), 1.0);
    }

    #[test]
    fn a_machine_of_two_speeds_is_slow_half_of_the_time() {
        let script = script(json!({ "slow_phase_percent": 50, "phase_ms": 200 }));
        let factors: Vec<f64> =
            (0..10_000).map(|phase| machine_factor(&script, phase * 200_000_000 + 7)).collect();
        assert!(factors.iter().all(|&factor| factor == 1.0 || factor == 1.5));
        let slow = factors.iter().filter(|&&factor| factor == 1.5).count();
        assert!((4_800..5_200).contains(&slow), "{slow} of 10000");
    }

    #[test]
    fn noise_has_the_requested_spread_and_no_bias() {
        let (script, count) = (script(json!({ "noise_percent": 10 })), 20_000);
        let logs = (0..count)
            .map(|seed| Launch { seed: mix(seed), number: 0, began_unix_ns: 0 }.factor(&script, 0, 0).ln());
        let (sum, squares) = logs.fold((0.0, 0.0), |(sum, squares), log| (sum + log, squares + log * log));
        let (mean, deviation) = (sum / count as f64, (squares / count as f64).sqrt());
        assert!(mean.abs() < 0.003 && (deviation / 1.1f64.ln() - 1.0).abs() < 0.02, "{mean} {deviation}");
    }

    #[test]
    fn seeded_noise_differs_by_launch_and_not_by_process() {
        let script = script(json!({ "noise_percent": 10, "noise_seed": 3 }));
        let factor = |seed, number| Launch { seed, number, began_unix_ns: 0 }.factor(&script, 0, 0);
        assert_eq!(factor(1, 5), factor(2, 5));
        assert_ne!(factor(1, 5), factor(1, 6));
    }

    #[test]
    fn launch_noise_is_constant_and_request_noise_varies() {
        let launch = Launch { seed: 7, number: 0, began_unix_ns: 0 };
        let factors = |script: &Script| {
            [(0, 0), (0, 1), (1, 0)].map(|(request, iteration)| launch.factor(script, request, iteration))
        };
        let [one, two, three] = factors(&script(json!({ "noise_percent": 10 })));
        assert!(one == two && two == three && one != 1.0, "{one}");
        let [one, two, three] = factors(&script(json!({ "request_noise_percent": 10 })));
        assert!(one != two && two != three && one != three, "{one} {two} {three}");
    }
}
