use super::*;
use crate::plan::Verification;
use crate::record::specimen::{planned, selection, timed};

/// Three blocks of two rounds of four workloads for each engine. `ids` gives the output of a configuration in a block.
fn record(names: &[&str], ids: impl Fn(usize, u32) -> Vec<u32>) -> RunRecord {
    let mut selection = selection(names);
    selection.verification = Verification::Named;
    selection.scenarios.retain(|it| ["decode", "ttft"].contains(&it.name));
    let mut record = planned(&selection);
    let plan = record.header.plan.clone();
    for block in 0..3 {
        for configuration in plan.measured() {
            let launch = timed::launch(&mut record, configuration, block, "any");
            for case in plan.cases_of(configuration) {
                for index in 0..2 {
                    timed::answer(&mut record, launch, case, index, 1.0);
                    let sample = record.samples.last_mut().unwrap();
                    sample.iteration.sequences[0].output_ids = Some(ids(configuration, block));
                }
            }
        }
    }
    record
}

/// The last samples of four workloads in three blocks. Those of the last block are checked at
/// `MAX_POSITIONS` positions.
const LAST_SAMPLES: usize = 12;

fn model(record: &RunRecord) -> Model {
    record.header.plan.configurations[0].model.clone()
}

#[test]
fn only_samples_that_differ_from_the_verifiers_are_unverified() {
    let ids =
        |configuration, block| if (configuration, block) == (1, 2) { vec![5, 6, 9] } else { vec![5, 6, 7] };
    let record = record(&["a", "b"], ids);
    let samples = unverified_samples(&record, &model(&record), Some(0));
    assert!(!samples.is_empty());
    for unverified in &samples {
        let sample = &record.samples[unverified.sample];
        assert_eq!((unverified.configuration, unverified.differs_at), (1, Some(2)));
        assert_eq!(record.launches[sample.launch as usize].block, 2);
    }
    // No request in a launch for output checks counts as measured.
    let mut checked = record.clone();
    checked.launches.iter_mut().for_each(|it| it.for_output_checks = it.block == 2);
    assert_eq!(unverified_samples(&checked, &model(&checked), Some(0)), []);
    // Without a verifier all outputs are unverified, and no position differs.
    let all = unverified_samples(&record, &model(&record), None);
    assert!(all.iter().all(|unverified| unverified.differs_at.is_none()));
    let of_configuration = |index| all.iter().filter(move |it| it.configuration == index);
    let at_max_positions =
        |index| of_configuration(index).filter(|it| it.max_positions == MAX_POSITIONS).count();
    assert_eq!([at_max_positions(0), at_max_positions(1)], [MAX_SAMPLES; 2]);
    assert_eq!(of_configuration(0).count(), LAST_SAMPLES);
}

#[test]
fn the_last_sample_of_each_workload_is_checked_first() {
    let record = record(&["a", "b"], |_, _| vec![5, 6, 7]);
    let samples = unverified_samples(&record, &model(&record), None);
    // The case, the block and the round of each checked sample.
    let checked_of = |configuration: usize| -> Vec<(usize, u32, u32)> {
        let of_configuration = samples.iter().filter(|unverified| unverified.configuration == configuration);
        let recorded = of_configuration.map(|unverified| &record.samples[unverified.sample]);
        recorded.map(|it| (it.case, record.launches[it.launch as usize].block, it.index)).collect()
    };
    let of_a = checked_of(0);
    let workloads: BTreeSet<usize> = of_a.iter().map(|(case, ..)| *case).collect();
    assert!(workloads.len() == 4 && of_a.len() == LAST_SAMPLES, "{of_a:?}");
    let blocks_and_rounds: Vec<(u32, u32)> = of_a.iter().map(|(_, block, round)| (*block, *round)).collect();
    assert_eq!(blocks_and_rounds, [[(2, 1); 4], [(1, 1); 4], [(0, 1); 4]].concat());
    // Both engines have the same order, so that one answer serves both.
    let plan = &record.header.plan;
    let with_labels = |checked: Vec<(usize, u32, u32)>| -> Vec<(String, u32, u32)> {
        checked
            .into_iter()
            .map(|(case, block, round)| (plan.cases[case].workload.label.clone(), block, round))
            .collect()
    };
    assert_eq!(with_labels(of_a), with_labels(checked_of(1)));
}

#[test]
fn the_last_dependent_prompt_of_each_workload_is_checked_first() {
    let mut record = record(&["a"], |_, _| vec![5]);
    let case = record.samples.last().unwrap().case;
    for (launch, index) in [(0, 1), (1, 0)] {
        let is_chosen = |it: &&mut Sample| (it.case, it.launch, it.index) == (case, launch, index);
        record.samples.iter_mut().find(is_chosen).unwrap().dependent = true;
    }
    let samples = unverified_samples(&record, &model(&record), None);
    let of_case: Vec<&Sample> =
        samples.iter().map(|it| &record.samples[it.sample]).filter(|it| it.case == case).collect();
    assert_eq!((of_case[0].launch, of_case[0].index), (1, 0));
    assert!(of_case.iter().any(|it| (it.launch, it.index) == (2, 1)), "the last one is checked too");
}

#[test]
fn other_dependent_prompts_take_turns_with_the_last_samples_of_blocks() {
    let mut record = record(&["a", "b"], |_, _| vec![5]);
    let plan = record.header.plan.clone();
    for sample in record.samples.iter_mut().filter(|it| it.index == 0) {
        sample.dependent = Prompts::can_depend(&plan.cases[sample.case].workload);
    }
    let samples = unverified_samples(&record, &model(&record), None);
    let of_a: Vec<&Sample> =
        samples.iter().filter(|it| it.configuration == 0).map(|it| &record.samples[it.sample]).collect();
    // Two workloads can depend. All three blocks have one such prompt for each, and none is checked twice.
    let dependent: Vec<usize> = (0..of_a.len()).filter(|&at| of_a[at].dependent).collect();
    assert_eq!(dependent.len(), 6);
    let last_dependent = *dependent.last().unwrap();
    assert!(of_a[..last_dependent].iter().any(|it| it.index == 1) && last_dependent > 6, "{dependent:?}");
    let distinct: BTreeSet<usize> = samples.iter().map(|it| it.sample).collect();
    assert_eq!(distinct.len(), samples.len());
}

#[test]
fn further_samples_are_long_outputs_and_long_prompts_in_turn() {
    let record = record(&["a", "b"], |_, _| vec![5; 8]);
    let chosen = unverified_samples(&record, &model(&record), None);
    let further = further_samples(&record, &model(&record), None, &chosen);
    let plan = &record.header.plan;
    let of = |configuration: usize| -> Vec<&crate::plan::Workload> {
        let of_configuration = further.iter().filter(|it| it.configuration == configuration);
        of_configuration.map(|it| &plan.cases[record.samples[it.sample].case].workload).collect()
    };
    let depends: Vec<bool> = of(0).into_iter().map(Prompts::can_depend).collect();
    assert_eq!(depends[..4], [false, true, false, true], "{depends:?}");
    assert!(of(0).iter().map(|it| &it.label).eq(of(1).iter().map(|it| &it.label)));
    assert!(further.iter().all(|it| it.is_further() && !chosen.contains(it)));
}

#[test]
fn every_workload_is_checked_once_before_any_is_checked_twice() {
    let mut record = record(&["a", "b"], |_, _| vec![5]);
    // The first engine has samples of `decode` only.
    let cases = record.header.plan.cases.clone();
    let is_removed =
        |it: &Sample| cases[it.case].configuration == 0 && cases[it.case].workload.max_new_tokens == 1;
    record.samples.retain(|it| !is_removed(it));
    let samples = unverified_samples(&record, &model(&record), None);
    let mut checked = BTreeSet::new();
    let order: Vec<bool> =
        samples.iter().map(|unverified| checked.insert(record.samples[unverified.sample].case)).collect();
    let cases: BTreeSet<usize> = record.samples.iter().map(|it| it.case).collect();
    assert_eq!(order.iter().filter(|first| **first).count(), cases.len());
    assert!(order.is_sorted_by(|one, next| one >= next), "{order:?}");
    let turns: Vec<usize> = samples.iter().map(|unverified| unverified.configuration).collect();
    assert_eq!(turns[..2], [0, 1]);
}

#[test]
fn one_token_outputs_are_checked_and_outputs_with_a_temperature_are_not() {
    let single = record(&["a"], |_, _| vec![5]);
    assert_eq!(unverified_samples(&single, &model(&single), None).len(), LAST_SAMPLES);
    for (temperature, expected) in [(0.0, LAST_SAMPLES), (0.5, 0), (1.0, 0)] {
        let mut random = record(&["a"], |_, _| vec![5, 6]);
        let sampling = protocol::Sampling { temperature, ..Default::default() };
        random.header.plan.cases.iter_mut().for_each(|case| case.workload.sampling = Some(sampling));
        assert_eq!(unverified_samples(&random, &model(&random), None).len(), expected, "{temperature}");
    }
}

#[test]
fn checked_positions_include_the_end_and_the_least_likely_tokens() {
    assert_eq!(positions(64, None, &[], MAX_POSITIONS), [63, 0, 9, 18, 27, 36, 45, 54]);
    assert_eq!(positions(3, None, &[], MAX_POSITIONS), [2, 0, 1]);
    assert_eq!(positions(1, Some(0), &[Some(-1.0)], MAX_POSITIONS), [0]);
    assert_eq!(positions(0, None, &[], MAX_POSITIONS), Vec::<usize>::new());
    let mut logprobs = vec![Some(-0.1); 64];
    (logprobs[31], logprobs[33], logprobs[40]) = (Some(-9.0), None, Some(-5.0));
    let chosen = positions(64, Some(30), &logprobs, MAX_POSITIONS);
    assert_eq!(chosen.len(), 8);
    assert_eq!(chosen[..5], [30, 63, 33, 31, 40]);
    assert_eq!(positions(64, Some(30), &logprobs, MAX_POSITIONS_OF_LAST), [30, 63, 33]);
}
