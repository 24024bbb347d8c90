//! All claims of two correct engines hold. Each test then changes the facts or the samples of `beacon`. The
//! modules `clocks` and `clock_rates` test the checks of clocks, and `prompt_tokens` the comparison of prompts.

mod clock_rates;
mod clocks;
mod prompt_tokens;

use std::ops::Range;

use protocol::{Capabilities, Facts, IgnoreEos};

use super::configuration_data::About;
use super::specimen::{
    BEACON_INDEX, change_facts, contradictions, decode_record, launches, measured_samples, record_of,
    record_of_blocks, samples, with_busy_cores,
};
use super::*;
use crate::analysis::metric::CoresBusy;
use crate::plan::{Sizes, Verification};
use crate::record::{
    Continued, HeldMemory, HeldOut, HeldOutScores, Late, Launch, RECORD_VERSION, ReferenceAnswers,
    RequestKind, RunRecord, Sample,
};
use crate::text::three_digits;

const GB: u64 = 1_000_000_000;
const BILLION: u64 = 1_000_000_000;

/// The false claims of the engine that tests change. The other engine has none.
fn contradictions_of(record: &RunRecord) -> Vec<Contradiction> {
    let all = contradictions(record);
    assert!(all.iter().all(|contradiction| contradiction.configuration == BEACON_INDEX), "{all:?}");
    all
}

fn single_contradiction(record: &RunRecord) -> Contradiction {
    let mut all = contradictions_of(record);
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

fn remarks_on(record: &RunRecord) -> Vec<String> {
    remarks(&Values::of(record), &Agreement::of(record))
}

/// Checks that one remark has these words, and that no claim is contradicted: beacon is still ranked.
fn assert_remarked(record: &RunRecord, expected: &str) {
    let [remark] = &remarks_on(record)[..] else { panic!("{:?}", remarks_on(record)) };
    assert!(remark.starts_with("beacon: ") && remark.contains(expected), "{remark}");
    assert_eq!(contradictions_of(record), []);
}

/// Checks that the record has neither a false claim nor a remark.
fn assert_clean(record: &RunRecord) {
    assert_eq!((contradictions_of(record), remarks_on(record)), (Vec::new(), Vec::new()));
}

/// Checks that one false claim is reported, with `expected` in its message, and that it excludes only beacon from the ranking.
fn assert_excluded(record: &RunRecord, about: About, expected: &str) {
    let Contradiction { about: found, message, .. } = single_contradiction(record);
    assert_eq!(found, about, "{message}");
    assert!(message.starts_with("beacon: ") && message.contains(expected), "{message}");
    let excluded = [0, BEACON_INDEX].map(|index| is_contradicted(&contradictions(record), index));
    assert_eq!(excluded, [false, true]);
    assert_eq!(remarks_on(record), Vec::<String>::new());
}

#[test]
fn correct_engines_have_no_contradictions_in_any_scenario() {
    for scenario in crate::plan::scenario::named("default").unwrap() {
        assert_eq!(contradictions_of(&record_of(&[scenario.name], |_| {})), []);
    }
}

// Dtype.

fn sizes(parameters: u64, read_per_token: u64) -> Option<Sizes> {
    Some(Sizes { parameters, read_per_token, kv_numbers_per_position: 16384, ..Sizes::default() })
}

#[test]
fn memory_too_small_for_the_reported_weights_contradicts_the_report() {
    let record = decode_record(|record| change_facts(record, |facts| facts.weights_bytes = Some(2 * GB)));
    assert_excluded(
        &record,
        About::Dtype,
        "reports `f32` weights of 2.00 GB (reported bytes), but its processes never held more than 61.0 MB",
    );
}

#[test]
fn a_reported_dtype_without_bytes_implies_the_size_of_the_weights() {
    let with_resident = |resident| {
        decode_record(|record| {
            record.header.plan.configurations[BEACON_INDEX].model.sizes = sizes(BILLION, BILLION);
            samples(record).for_each(|sample| sample.peak_resident_bytes = Some(resident));
        })
    };
    assert_excluded(&with_resident(GB), About::Dtype, "weights of 4.00 GB (for 1.00 billion parameters)");
    assert_eq!(contradictions_of(&with_resident(4 * GB)), []);
}

#[test]
fn weights_that_no_token_reads_need_not_be_resident() {
    let record = decode_record(|record| {
        record.header.plan.configurations[BEACON_INDEX].model.sizes = sizes(BILLION, BILLION / 8);
        samples(record).for_each(|sample| sample.peak_resident_bytes = Some(GB));
    });
    assert_eq!(contradictions_of(&record), []);
}

#[test]
fn small_models_and_models_beyond_memory_report_nothing() {
    let small = decode_record(|record| {
        change_facts(record, |facts| facts.weights_bytes = Some(60_000_000));
        samples(record).for_each(|sample| sample.peak_resident_bytes = Some(20_000_000));
    });
    assert_eq!(contradictions_of(&small), []);
    let large = decode_record(|record| {
        record.header.machine.memory_bytes = Some(GB);
        change_facts(record, |facts| facts.weights_bytes = Some(2 * GB));
    });
    assert_eq!(contradictions_of(&large), []);
}

#[test]
fn memory_of_engines_in_other_processes_or_on_a_gpu_is_not_compared() {
    for change in [
        |launch: &mut Launch| launch.loaded.as_mut().unwrap().pids = vec![7],
        |launch: &mut Launch| launch.loaded.as_mut().unwrap().facts.device = Some("cuda:0".into()),
    ] {
        let record = decode_record(|record| {
            change_facts(record, |facts| facts.weights_bytes = Some(2 * GB));
            launches(record).for_each(change);
            samples(record).for_each(|sample| sample.cpu_ns = Some(0));
        });
        assert_eq!(contradictions_of(&record), []);
    }
}

/// A record of an engine that reports this dtype, with this much memory that no file backs.
fn with_anonymous_memory(dtype: &str, weights_bytes: u64, anonymous_bytes: u64) -> RunRecord {
    decode_record(|record| {
        change_facts(record, |facts| {
            (facts.weights_dtype, facts.weights_bytes) = (Some(dtype.into()), Some(weights_bytes));
        });
        let held = HeldMemory {
            resident_bytes: anonymous_bytes.max(weights_bytes),
            anonymous_bytes,
            ..HeldMemory::default()
        };
        samples(record).for_each(|sample| sample.held = Some(held));
    })
}

#[test]
fn memory_of_f32_size_for_narrow_weights_is_reported() {
    let record = with_anonymous_memory("bf16", 2 * GB, 4_100_000_000);
    assert_excluded(
        &record,
        About::Dtype,
        "always held 4.10 GB that no file backs: as much as f32 needs (4.00 GB)",
    );
    assert_excluded(
        &with_anonymous_memory("q4_0", 2 * GB, 15 * GB),
        About::Dtype,
        "`q4_0` weights of 2.00 GB",
    );
    assert_eq!(contradictions_of(&with_anonymous_memory("bf16", 2 * GB, 3_900_000_000)), []);
    assert_eq!(contradictions_of(&with_anonymous_memory("f32", 2 * GB, 9 * GB)), []);
    // The other memory of a program may be larger than the difference between the sizes in f32 and bf16.
    assert_eq!(contradictions_of(&with_anonymous_memory("bf16", GB / 4, 2 * GB)), []);
}

#[test]
fn a_key_value_cache_does_not_count_as_weights() {
    let mut record = with_anonymous_memory("bf16", 2 * GB, 4_100_000_000);
    record.header.plan.configurations[BEACON_INDEX].model.sizes = sizes(BILLION, BILLION);
    change_facts(&mut record, |facts| facts.context_tokens = Some(8192));
    assert_eq!(contradictions_of(&record), []);
    change_facts(&mut record, |facts| facts.context_tokens = Some(128));
    assert_excluded(&record, About::Dtype, "of which 8.39 MB may be keys and values: as much as f32 needs");
}

/// A record in which both engines scored the same 100 tokens. Their log-probabilities differ by `difference`, in nats.
fn scored(difference: f64, change: impl Fn(&mut Facts)) -> RunRecord {
    decode_record(|record| {
        record.header.plan.configurations[0].verifies = true;
        record.header.plan.configurations[BEACON_INDEX].model.dtype = Some("F32".into());
        record.header.plan.configurations[0].model =
            record.header.plan.configurations[BEACON_INDEX].model.clone();
        change_facts(record, change);
        record.header.plan.verification = Verification::Usual;
        record.header.record_version = RECORD_VERSION;
        record.held_out.push(HeldOut { model: "/m".into(), ..HeldOut::default() });
        for launch in record.launches.iter_mut().filter(|launch| launch.configuration == 0) {
            let facts = &mut launch.loaded.as_mut().unwrap().facts;
            (facts.weights_dtype, facts.compute_dtype) = (Some("f32".into()), Some("f32".into()));
        }
        for (configuration, offset) in [(0, 0.0), (BEACON_INDEX, difference)] {
            let logprobs = (0..100).map(|position| Some(-f64::from(position) / 20.0 + offset)).collect();
            record.scored.push(HeldOutScores { configuration, logprobs, ..HeldOutScores::default() });
        }
    })
}

#[test]
fn a_narrow_dtype_without_rounding_is_reported() {
    let narrow = |facts: &mut Facts| facts.compute_dtype = Some("bf16".into());
    assert_excluded(&scored(1e-6, narrow), About::Dtype, "reports that it computes in `bf16`");
    assert_eq!(contradictions_of(&scored(5e-3, narrow)), []);
    let weights = |facts: &mut Facts| facts.weights_dtype = Some("q8_0".into());
    assert_excluded(&scored(1e-6, weights), About::Dtype, "holds its weights in `q8_0`");
    assert_eq!(contradictions_of(&scored(1e-6, |_| {})), []);
}

#[test]
fn an_engine_in_f32_may_be_exact_if_the_model_file_has_narrow_weights() {
    let mut record = scored(0.0, |facts| facts.weights_dtype = Some("bf16".into()));
    for configuration in &mut record.header.plan.configurations {
        configuration.model.dtype = Some("BF16".into());
    }
    assert_eq!(contradictions_of(&record), []);
}

#[test]
fn reference_answers_replace_a_verifier_but_few_tokens_prove_nothing() {
    let mut record = scored(0.0, |facts| facts.compute_dtype = Some("f16".into()));
    record.header.plan.configurations[0].verifies = false;
    let scored = record.scored.pop().unwrap();
    let stored = |tokens: usize| ReferenceAnswers {
        model: "/m".into(),
        logprobs: vec![scored.logprobs[..tokens].to_vec()],
        ..ReferenceAnswers::default()
    };
    record.scored = vec![scored.clone()];
    assert_eq!(contradictions_of(&record), []);
    record.reference_answers = vec![stored(20)];
    assert_eq!(contradictions_of(&record), []);
    record.reference_answers = vec![stored(100)];
    assert_excluded(&record, About::Dtype, "it does not round");
}

// Threads.

/// A record in which beacon keeps this many cores busy.
fn busy(cores: f64, change: impl FnOnce(&mut RunRecord)) -> RunRecord {
    decode_record(|record| {
        measured_samples(record).for_each(|sample| {
            sample.cpu_ns = Some((cores * (sample.answered_ns - sample.sent_ns) as f64) as u64);
        });
        change(record);
    })
}

#[test]
fn fewer_busy_cores_than_threads_are_reported_with_the_case() {
    let record = busy(1.02, |_| {});
    assert_remarked(&record, "2 threads, but kept fewer cores busy: 1.02 in `decode`");
    assert_clean(&busy(1.3, |_| {}));
    // One thread may wait.
    assert_clean(&busy(0.5, |record| change_facts(record, |facts| facts.threads = Some(1))));
    // Between requests that arrive at a rate, an engine waits.
    let at_a_rate = |record: &mut RunRecord| {
        for case in &mut record.header.plan.cases {
            case.workload.shape.request_rate = "2".parse().ok();
        }
    };
    assert_clean(&busy(0.2, at_a_rate));
}

#[test]
fn a_report_of_idle_threads_names_the_other_cases_too() {
    let record = record_of(&["decode", "prefill"], |record| {
        let plan = record.header.plan.clone();
        for sample in samples(record) {
            let cores = if plan.cases[sample.case].workload.scenario == "decode" { 1 } else { 2 };
            sample.cpu_ns = Some(cores * (sample.answered_ns - sample.sent_ns));
        }
    });
    assert_remarked(&record, "busy: 1.00 in `decode` (CPU time over");
    let remarks = remarks_on(&record);
    assert!(remarks[0].ends_with("elsewhere 2.00 in `prefill`"), "{remarks:?}");
}

#[test]
fn more_busy_cores_than_threads_exclude_an_engine_from_the_ranking() {
    let one_thread = |record: &mut RunRecord| change_facts(record, |facts| facts.threads = Some(1));
    assert_excluded(&busy(1.9, one_thread), About::Threads, "1 thread, but kept 1.90 cores busy in `decode`");
    assert_eq!(contradictions_of(&busy(1.2, one_thread)), []);
}

#[test]
fn the_cores_in_the_warning_equal_the_cores_in_the_table() {
    let record = busy(1.0, |record| {
        let short = measured_samples(record).next().unwrap();
        short.answered_ns = short.sent_ns + 1_000_000;
        short.iteration.end_ns = short.iteration.start_ns + 1_000_000;
        short.iteration.sequences[0].token_ns = None;
        short.cpu_ns = Some(100_000_000);
    });
    let case = record.header.plan.cases_of(BEACON_INDEX)[0];
    let cores = three_digits(CoresBusy::of(Values::of(&record).samples(case)).unwrap().cores);
    assert_ne!(cores, "1.00");
    assert_remarked(&record, &format!("kept fewer cores busy: {cores} in `decode`"));
}

#[test]
fn short_requests_report_nothing_about_threads() {
    let remarks_about_threads = |elapsed_ns: u64| {
        let mut record = busy(1.0, |_| {});
        let mut template = measured_samples(&mut record).next().unwrap().clone();
        template.answered_ns = template.sent_ns + elapsed_ns;
        template.iteration.end_ns = template.iteration.start_ns + elapsed_ns;
        template.iteration.sequences[0].token_ns = None;
        template.cpu_ns = Some(elapsed_ns);
        record.samples.retain(|sample| sample.case != template.case);
        record.samples.extend((0..400).map(|index| Sample { index, ..template.clone() }));
        remarks_on(&record).len()
    };
    assert_eq!((remarks_about_threads(1_900_000), remarks_about_threads(2_100_000)), (0, 1));
}

#[test]
fn a_crowded_machine_reports_nothing_about_idle_threads() {
    let crowded = |share: f64| {
        busy(1.0, |record| {
            measured_samples(record).for_each(|sample| {
                sample.waited_ns = Some((share * (sample.answered_ns - sample.sent_ns) as f64) as u64);
            });
        })
    };
    assert_clean(&crowded(0.3));
    assert_remarked(&crowded(0.01), "1.00 in `decode`");
}

#[test]
fn too_little_time_or_more_threads_than_cores_report_nothing() {
    let short = busy(1.0, |record| {
        measured_samples(record).for_each(|sample| {
            sample.answered_ns = sample.sent_ns + 50_000_000;
            sample.iteration.end_ns = 49_000_000;
        });
        record.samples.retain(|sample| sample.case != 1 || sample.index < 3);
        samples(record).for_each(|sample| sample.iteration.sequences[0].token_ns = None);
    });
    assert_clean(&short);
    assert_clean(&busy(1.0, |record| record.header.machine.cpu.allowed_cores = Some(1)));
}

// Prefix caches.

/// A record in which the second request of each launch reaches its first token in this share of the time.
fn with_repeated_prompt(share: f64, prefix_cache: Option<bool>) -> RunRecord {
    with_fast_warm_ups(1..2, share, prefix_cache)
}

/// A record in which these warm-up requests take this share of their time. The first two have the same prompt.
fn with_fast_warm_ups(indices: Range<u32>, share: f64, prefix_cache: Option<bool>) -> RunRecord {
    record_of(&["prefill"], |record| {
        change_facts(record, |facts| facts.prefix_cache = prefix_cache);
        for sample in
            samples(record).filter(|it| it.kind == RequestKind::Warmup && indices.contains(&it.index))
        {
            let iteration = &mut sample.iteration;
            let first = &mut iteration.sequences[0].token_ns.as_mut().unwrap()[0];
            let shorter = ((*first - iteration.start_ns) as f64 * (1.0 - share)) as u64;
            *first -= shorter;
            iteration.end_ns -= shorter;
            sample.answered_ns -= shorter;
        }
    })
}

#[test]
fn a_fast_answer_to_a_repeated_prompt_is_reported_with_its_ratio() {
    let record = with_repeated_prompt(0.1, Some(false));
    assert_excluded(&record, About::PrefixCache, "no prefix cache, but answers a repeated prompt 9.9");
    let message = single_contradiction(&record).message;
    assert!(message.contains("times as fast") && message.contains("in `prefill`"), "{message}");
    assert_remarked(&with_repeated_prompt(0.1, None), "nothing about a prefix cache");
    assert_clean(&with_repeated_prompt(0.1, Some(true)));
    assert_clean(&with_repeated_prompt(0.7, Some(false)));
}

#[test]
fn a_machine_that_becomes_slower_after_the_repeated_prompt_is_no_prefix_cache() {
    assert_clean(&with_fast_warm_ups(0..2, 0.1, Some(false)));
}

#[test]
fn one_fast_launch_of_three_is_not_reported() {
    let mut record = with_repeated_prompt(1.0, Some(false));
    let fast = with_repeated_prompt(0.1, Some(false));
    let first = record.launches.iter().find(|it| it.configuration == BEACON_INDEX).unwrap().launch;
    for (sample, fast_sample) in record.samples.iter_mut().zip(fast.samples) {
        if sample.launch == first {
            *sample = fast_sample;
        }
    }
    assert_eq!(contradictions_of(&record), []);
}

#[test]
fn a_prefix_cache_is_reported_from_few_launches_only_if_the_ratio_is_large() {
    let in_one_block = |share| {
        let mut record = with_repeated_prompt(share, Some(false));
        record.launches.retain(|launch| launch.block == 0);
        let launches: Vec<u32> = record.launches.iter().map(|launch| launch.launch).collect();
        record.samples.retain(|sample| launches.contains(&sample.launch));
        record
    };
    assert_eq!(contradictions_of(&in_one_block(0.4)), []);
    assert_excluded(&in_one_block(0.1), About::PrefixCache, "instead of");
}

#[test]
fn cached_prompt_tokens_are_reported_unless_only_the_first_token_is_cached() {
    let cached = |tokens| {
        record_of(&["prefill"], |record| {
            measured_samples(record)
                .for_each(|it| it.iteration.sequences[0].cached_prompt_tokens = Some(tokens));
        })
    };
    assert_excluded(&cached(768), About::PrefixCache, "768 of 1024 tokens of a measured prompt as cached");
    assert_eq!(contradictions_of(&cached(1)), []);
}

#[test]
fn a_cache_contradicts_nothing_where_the_requests_allow_it() {
    let allowed = |mut record: RunRecord| {
        record.header.plan.cases.iter_mut().for_each(|case| case.workload.shape.prefix_cache = true);
        record
    };
    assert_clean(&allowed(with_repeated_prompt(0.1, Some(false))));
    let cached = record_of(&["prefill"], |record| {
        measured_samples(record).for_each(|it| it.iteration.sequences[0].cached_prompt_tokens = Some(768));
    });
    assert_eq!(contradictions_of(&allowed(cached)), []);
}

// EOS.

/// A record in which both engines report `exact`, and the verifier gives EOS (2) as the tenth token of this many prompts.
/// `engine_id` is the id that beacon gives at a position.
fn with_eos(prompts: u32, engine_id: impl Fn(usize) -> u32) -> RunRecord {
    decode_record(|record| {
        record.header.plan.configurations[0].verifies = true;
        let exact = Capabilities { ignore_eos: IgnoreEos::Exact, ..Capabilities::default() };
        for launch in &mut record.launches {
            launch.hello.get_or_insert_default().capabilities = exact.clone();
            launch.loaded.as_mut().unwrap().facts.eos_ids = Some(vec![2]);
        }
        let plan = record.header.plan.clone();
        for sample in &mut record.samples {
            let prompt = sample.index % 3;
            sample.prompt_hash = format!("prompt {prompt}");
            let ids = sample.iteration.sequences[0].output_ids.as_mut().unwrap();
            let configuration = plan.cases[sample.case].configuration;
            for (position, id) in ids.iter_mut().enumerate() {
                *id = match configuration {
                    BEACON_INDEX => engine_id(position),
                    _ if position == 9 && prompt < prompts => 2,
                    _ => 5,
                };
            }
        }
    })
}

#[test]
fn an_engine_that_gives_another_token_wherever_the_verifier_gives_eos_is_reported() {
    assert_excluded(&with_eos(3, |_| 5), About::Eos, "all 3 positions where the verifier gives EOS");
    // At a single position, rounding may be the cause. A single EOS shows that the engine can give EOS. A different text before
    // EOS proves nothing.
    assert_eq!(contradictions_of(&with_eos(1, |_| 5)), []);
    assert_eq!(contradictions_of(&with_eos(3, |position| if position == 30 { 2 } else { 5 })), []);
    assert_eq!(contradictions_of(&with_eos(3, |position| if position == 4 { 6 } else { 5 })), []);
    let mut masked = with_eos(3, |_| 5);
    launches(&mut masked).for_each(|launch| {
        launch.hello.as_mut().unwrap().capabilities.ignore_eos = IgnoreEos::Masked;
    });
    assert_eq!(contradictions_of(&masked), []);
}

#[test]
fn the_continuation_of_held_out_text_counts_as_a_position_with_eos() {
    let mut record = with_eos(1, |_| 5);
    let ids = |last: u32| [vec![7; 20], vec![last]].concat();
    record.continued = vec![Continued { configuration: BEACON_INDEX, launch: 1, ids: ids(9) }];
    assert_eq!(contradictions_of(&record), []);
    record.reference_answers =
        vec![ReferenceAnswers { model: "/m".into(), continued: ids(2), ..ReferenceAnswers::default() }];
    assert_excluded(&record, About::Eos, "all 2 positions");
}

#[test]
fn extreme_reported_numbers_cause_no_panic() {
    for extreme in [0, u64::MAX] {
        let record = decode_record(|record| {
            change_facts(record, |facts| {
                facts.weights_bytes = Some(extreme);
                facts.threads = Some(extreme as u32);
                facts.context_tokens = Some(extreme as u32);
                facts.weights_dtype = Some("q4_0".into());
            });
            record.header.plan.configurations[BEACON_INDEX].model.sizes = sizes(extreme, extreme);
            for sample in samples(record) {
                sample.cpu_ns = Some(extreme);
                sample.held = Some(HeldMemory {
                    anonymous_bytes: extreme,
                    resident_bytes: extreme,
                    ..HeldMemory::default()
                });
                (sample.iteration.start_ns, sample.iteration.end_ns) = (extreme, extreme);
                sample.iteration.sequences[0].token_ns = Some(vec![extreme; 3]);
                sample.late = Some(Late { first_ns: i64::MAX, median_ns: i64::MIN });
            }
        });
        assert!(contradictions(&record).iter().all(|it| it.message.starts_with("beacon: ")));
    }
}
