//! The times of text prompts and of dependent prompts.

use super::*;
use crate::record::specimen::timed;
use crate::record::specimen::{planned, selection};
use stats::Random;

/// A record of this many launches of `ttft 512` and `prefill`, in which every second request has a dependent prompt. `factor` gives
/// the factor on the time of beacon's request, by launch and by whether its prompt is dependent.
fn record(launches: u32, mut factor: impl FnMut(u32, bool) -> f64) -> RunRecord {
    let mut selection = selection(&["patient-original", "beacon"]);
    selection.scenarios.retain(|it| ["ttft", "prefill"].contains(&it.name));
    let mut record = planned(&selection);
    let plan = record.header.plan.clone();
    for block in 0..launches {
        for (configuration, it) in plan.configurations.iter().enumerate() {
            let launch = timed::launch(&mut record, configuration, block, &it.engine);
            for case in plan.cases_of(configuration) {
                for index in 0..plan.cases[case].workload.rounds {
                    let dependent = (block + index) % 2 == 0;
                    let factor = if configuration == BEACON_INDEX { factor(block, dependent) } else { 1.0 };
                    timed::answer(&mut record, launch, case, index, 20.0 * factor);
                    record.samples.last_mut().unwrap().dependent = dependent;
                }
            }
        }
    }
    record
}

#[test]
fn an_engine_that_is_faster_on_one_kind_of_prompts_is_named() {
    let words = |faster: &str| format!("but answers prompts of {faster} 1.50 times as fast as prompts of ");
    let text_is_fast = record(5, |_, dependent| if dependent { 1.5 } else { 1.0 });
    assert_excluded(&text_is_fast, About::PromptTokens, &words("text"));
    let patterns_are_fast = record(5, |_, dependent| if dependent { 1.0 } else { 1.5 });
    assert_excluded(&patterns_are_fast, About::PromptTokens, &words("a repeated pattern"));
    // Three launches need a larger ratio, and two show nothing.
    let ratio = |launches, ratio| record(launches, move |_, dependent| if dependent { ratio } else { 1.0 });
    assert_excluded(&ratio(3, 2.5), About::PromptTokens, "2.50 times as fast");
    assert_clean(&ratio(3, 1.5));
    assert_clean(&ratio(2, 9.0));
    // An engine cannot escape by an honest launch.
    let once_honest = record(5, |block, dependent| if dependent && block != 2 { 3.0 } else { 1.0 });
    assert_excluded(&once_honest, About::PromptTokens, "3.00 times as fast");
}

#[test]
fn on_a_machine_with_plateaus_of_speed_no_correct_engine_is_named() {
    let mut accused = 0;
    for seed in 0..1000 {
        let mut random = Random::seeded(seed);
        // A third of the requests is 1.6 times as slow, and all have noise of 10 %.
        let noisy = record(5, |_, _| {
            let plateau = if random.below(3) == 0 { 1.6 } else { 1.0 };
            plateau * (0.1 * random.normal()).exp()
        });
        accused += usize::from(!contradictions(&noisy).is_empty());
    }
    assert!(accused <= 1, "{accused}");
}
