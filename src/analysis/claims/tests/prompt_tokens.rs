//! The times of text prompts and of dependent prompts.

use super::*;
use crate::record::specimen::timed;
use crate::record::specimen::{planned, selection};
use stats::Random;

/// A record of this many launches of `ttft 512` and `prefill`, in which every second request has a dependent prompt. `factor`
/// gives the factor on the time of beacon's request in a launch, with a dependent prompt or with text.
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
fn an_engine_that_is_faster_on_one_kind_of_prompts_is_reported() {
    let ratio = |launches, ratio| record(launches, move |_, dependent| if dependent { ratio } else { 1.0 });
    let words = "but answers prompts of text 1.50 times as fast as prompts of a repeated pattern";
    assert_excluded(&ratio(5, 1.5), About::PromptTokens, words);
    let words = "but answers prompts of a repeated pattern 4.00 times as fast as prompts of text";
    assert_excluded(&ratio(5, 0.25), About::PromptTokens, words);
    // A correct engine with experts may be faster on a repeated pattern.
    assert_clean(&ratio(5, 0.5));
    // Three launches need a larger ratio, and two show nothing.
    assert_excluded(&ratio(3, 3.5), About::PromptTokens, "3.50 times as fast");
    assert_clean(&ratio(3, 2.5));
    assert_clean(&ratio(2, 9.0));
    // A launch without a difference does not hide the others.
    let with_one_equal_launch = record(5, |block, dependent| if dependent && block != 2 { 3.5 } else { 1.0 });
    assert_excluded(&with_one_equal_launch, About::PromptTokens, "3.50 times as fast");
}

#[test]
fn prompts_of_another_length_than_that_of_the_case_are_not_compared() {
    let mut record = record(5, |_, dependent| if dependent { 1.0 } else { 4.0 });
    assert_eq!(contradictions(&record).len(), 1);
    for sample in record.samples.iter_mut().filter(|it| it.dependent) {
        sample.iteration.sequences.iter_mut().for_each(|it| it.prompt_tokens -= 1);
    }
    assert_clean(&record);
}

#[test]
fn a_correct_engine_is_not_reported_on_a_machine_with_two_levels_of_speed() {
    let mut false_positives = 0;
    for seed in 0..1000 {
        let mut random = Random::seeded(seed);
        // A third of the requests is 1.6 times as slow, and all have noise of 10 %.
        let noisy = record(5, |_, _| {
            let slowdown = if random.below(3) == 0 { 1.6 } else { 1.0 };
            slowdown * (0.1 * random.normal()).exp()
        });
        false_positives += usize::from(!contradictions(&noisy).is_empty());
    }
    assert!(false_positives <= 1, "{false_positives}");
}
