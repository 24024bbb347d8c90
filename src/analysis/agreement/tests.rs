use super::specimen::*;
use super::*;
use crate::plan::{Configuration, Verification};
use crate::record::{CheckedOutput, DifferingToken, Entry, NotChecked, RequestKind};

/// The agreement of the engine that is not the verifier.
fn engine(record: &RunRecord) -> Agreement {
    Agreement::of(record).swap_remove(ENGINE)
}

/// A record in which every score of the engine differs from the verifier's by `rms`. The engine reports these dtypes.
fn with_rms(rms: f64, weights: &str, compute: &str) -> RunRecord {
    let mut record = checked();
    record.header.plan.configurations[ENGINE].model.dtype = Some("bf16".into());
    record.header.plan.configurations[VERIFIER].model.dtype = Some("bf16".into());
    set_dtypes(&mut record, ENGINE, weights, compute);
    set_scores(&mut record, ENGINE, |position| Some(if position % 2 == 0 { rms } else { -rms }));
    record
}

fn add_not_checked(record: &mut RunRecord, reason: &str) {
    let (configuration, reason) = (Some(ENGINE), reason.into());
    record.take(Entry::NotChecked(NotChecked { configuration, reason, ..NotChecked::default() }));
}

/// Replaces the tokens from position 30 on by tokens that the verifier finds 6.2 nats less likely than its own.
fn add_wrong_tokens(record: &mut RunRecord) {
    replace_ids(record, ENGINE, |position| (position >= 30).then_some(9));
    add_reference_tokens(record, ENGINE, |position| if position >= 30 { 6.2 } else { 0.0 });
}

fn status(rms: f64, weights: &str, compute: &str) -> Status {
    engine(&with_rms(rms, weights, compute)).status
}

// Scores.

#[test]
fn an_engine_with_equal_output_and_the_verifier_are_exact() {
    let found = Agreement::of(&checked());
    assert_eq!(found[ENGINE].status, Status::Exact, "{:?}", found[ENGINE]);
    assert_eq!(found[ENGINE].against, Against::Engine { label: "patient-original".into() });
    assert_eq!((found[ENGINE].cell(), found[ENGINE].rms()), ("exact".into(), Some(0.0)));
    assert!(found[ENGINE].reasons.is_empty());
    let greedy = found[ENGINE].greedy.as_ref().unwrap();
    // The held-out prompt, and 3 rounds in each of 5 blocks.
    assert_eq!((greedy.texts, greedy.differing), (16, 0));
    assert_eq!((greedy.compared, greedy.equal), (32 + 15 * 64, 32 + 15 * 64));
    assert_eq!((found[VERIFIER].status, &found[VERIFIER].against), (Status::Exact, &Against::Itself));
    // The verifier's twin has its status.
    assert_eq!(found.len(), 3);
    assert_eq!(found[2].status, Status::Exact);
}

#[test]
fn the_dtype_sets_the_bound_of_agreement() {
    let f32 = |rms| status(rms, "f32", "f32");
    assert_eq!(
        [1.2e-6, 9e-4, 2e-3, 0.019].map(f32),
        [Status::Exact, Status::Exact, Status::Agrees, Status::Agrees]
    );
    assert_eq!(f32(0.021), Status::Wrong);
    let bf16 = |rms| status(rms, "bf16", "bf16");
    assert_eq!([0.016, 0.06, 0.11].map(bf16), [Status::Agrees, Status::Drifts, Status::Wrong]);
    let q4_0 = |rms| status(rms, "q4_0", "f32");
    assert_eq!([0.04, 0.46, 0.71].map(q4_0), [Status::Agrees, Status::Drifts, Status::Wrong]);
    assert_eq!(engine(&with_rms(0.46, "q4_0", "f32")).cell(), "drifts 0.46");
}

/// The results of `scripts/agreement/calibrate`, as in `MEASURED.md`: the model of 24 layers.
#[test]
fn all_correct_engines_of_the_calibration_are_within_their_bounds() {
    let measured = [
        ("f32", "f32", 1.3e-6, 1.5e-6),
        ("f16", "f16", 0.0019, 0.0023),
        ("bf16", "bf16", 0.016, 0.019),
        ("q8_0", "f32", 0.037, 0.045),
        ("q6_k", "f32", 0.10, 0.12),
        ("q4_k", "f32", 0.39, 0.43),
        ("q4_0", "f32", 0.46, 0.54),
    ];
    for (weights, compute, rms, stretch_rms) in measured {
        let mut record = with_rms(rms, weights, compute);
        assert_ne!(engine(&record).status, Status::Wrong, "{weights}");
        set_scores(&mut record, ENGINE, |position| Some(if position < 128 { stretch_rms } else { rms }));
        assert_ne!(engine(&record).status, Status::Wrong, "{weights}: {:?}", engine(&record));
    }
}

#[test]
fn a_permuted_layer_or_matrix_is_called_wrong() {
    // From `MEASURED.md`, in this order: one layer among 24 is wrong; one layer of the embedded model is wrong, and all layers
    // are rounded to q4_0; the queries of one layer among 24 are wrong.
    for (weights, compute) in [("f32", "f32"), ("bf16", "bf16"), ("q8_0", "f32"), ("q6_k", "f32")] {
        assert_eq!(status(0.50, weights, compute), Status::Wrong, "{weights}");
    }
    assert_eq!(status((0.95_f64.powi(2) + 0.075_f64.powi(2)).sqrt(), "q4_0", "f32"), Status::Wrong);
    assert_eq!(status(0.046, "f32", "f32"), Status::Wrong);
}

#[test]
fn the_worst_stretch_finds_ignored_rope_scaling() {
    for (weights, compute) in [("f32", "f32"), ("bf16", "bf16"), ("q8_0", "f32")] {
        let mut record = with_rms(0.0, weights, compute);
        // The smallest measured differences are 0.056 over all tokens and 0.18 over the worst stretch; here 0.061 and 0.18.
        set_scores(&mut record, ENGINE, |position| Some(if position < 1023 { 0.01 } else { 0.18 }));
        let found = engine(&record);
        assert_eq!(found.status, Status::Wrong, "{weights}: {found:?}");
        let why = "over ids 1,025 to 1,151 of held-out text 0 its log-probabilities differ from those of `patient-original` \
                   by 0.18 nats (root mean square; 0.061 over all); the bound for 16 bits is 0.15";
        assert!(weights != "bf16" || found.reasons == [why], "{found:?}");
    }
}

#[test]
fn a_model_file_in_4_bits_does_not_allow_its_engine_a_larger_difference() {
    let mut record = with_rms(0.11, "q4_0", "f32");
    assert_eq!(engine(&record).status, Status::Drifts);
    record.header.plan.configurations.iter_mut().for_each(|it| it.model.dtype = Some("q4_0".into()));
    let found = engine(&record);
    assert_eq!(found.status, Status::Wrong);
    let why = "by 0.11 nats (root mean square); the bound for 8 bits is 0.10";
    assert!(found.reasons[0].ends_with(why), "{found:?}");
}

#[test]
fn an_engine_that_lacks_a_log_probability_is_wrong() {
    let mut record = checked();
    set_scores(&mut record, ENGINE, |position| (position != 30).then_some(0.0));
    let found = engine(&record);
    assert_eq!(found.status, Status::Wrong);
    let why = "it gives no finite log-probability for id 31 of held-out text 0, unlike `patient-original`";
    assert_eq!(found.reasons, [why]);
    let mut short = checked();
    short.scored[1].logprobs.truncate(3);
    assert!(engine(&short).reasons[0].ends_with("the first of 1,148 such ids"), "{:?}", engine(&short));
}

#[test]
fn extreme_log_probabilities_give_a_status_without_a_panic() {
    for value in [f64::NAN, f64::INFINITY, -f64::MAX, f64::MAX, 1e300] {
        let mut record = checked();
        set_scores(&mut record, ENGINE, |_| Some(value));
        assert_eq!(engine(&record).status, Status::Wrong, "{value}");
        set_scores(&mut record, VERIFIER, |_| Some(value));
        let found = engine(&record);
        serde_json::to_string(&found).unwrap();
        assert!(found.rms().is_none_or(|rms| !rms.is_nan() || found.is_wrong()), "{found:?}");
    }
    let mut record = checked();
    record.scored[1].sequence = usize::MAX;
    record.scored[0].logprobs.clear();
    add_reference_tokens(&mut record, ENGINE, |_| f64::NAN);
    record.reference_tokens[1].position = u32::MAX;
    Agreement::of(&record);
}

// Costs of dtypes.

#[test]
fn a_measured_cost_narrows_the_bound_of_the_reported_dtype_and_the_reason_has_both_numbers() {
    let mut record = with_rms(0.074, "bf16", "bf16");
    assert_eq!(engine(&record).status, Status::Drifts);
    add_dtype_costs(&mut record);
    let found = engine(&record);
    assert_eq!(found.status, Status::Wrong);
    let why = "its log-probabilities of 1,151 held-out tokens differ from those of `patient-original` by 0.074 nats (root mean square); \
               the bound for 16 bits is 0.030: bf16 costs 0.0074 nats on this model";
    assert_eq!(found.reasons, [why]);
    // The same difference is not wrong for weights in 4 bits.
    set_dtypes(&mut record, ENGINE, "q4_0", "q8_0");
    assert_eq!(engine(&record).status, Status::Drifts, "{:?}", engine(&record));
    // A cost below a quarter of the bound of f32 does not narrow further. A dtype whose cost was not measured has the usual
    // bound of its precision.
    let mut fine = with_rms(0.019, "f16", "f16");
    add_dtype_costs(&mut fine);
    assert_eq!(engine(&fine).status, Status::Agrees);
    let mut other = with_rms(0.09, "int8", "f32");
    add_dtype_costs(&mut other);
    assert_eq!((engine(&other).status, engine(&other).cost), (Status::Drifts, None));
}

/// The ratios are the largest differences of correct engines over all tokens, divided by the cost of their dtypes
/// (`MEASURED.md`).
#[test]
fn a_correct_engine_is_within_half_of_the_bound_that_its_cost_gives() {
    for (weights, compute, cost, ratio) in
        [("bf16", "bf16", 0.0074, 1.2), ("q8_0", "q8_0", 0.0087, 1.4), ("q4_0", "q8_0", 0.0743, 1.1)]
    {
        let mut record = with_rms(2.0 * ratio * cost, weights, compute);
        add_dtype_costs(&mut record);
        assert_ne!(engine(&record).status, Status::Wrong, "{weights}: {:?}", engine(&record));
    }
}

#[test]
fn tokens_less_likely_in_total_than_the_reported_dtype_explains_are_wrong() {
    let status = |dtype: &str, positions: &[u32], gap: f64| {
        let mut record = with_rms(0.001, dtype, dtype);
        add_dtype_costs(&mut record);
        add_checked_outputs(&mut record, ENGINE, positions, gap);
        let found = engine(&record);
        (found.status, found.reasons, found.token_loss.unwrap())
    };
    // The record counts each of the 15 outputs of 64 tokens twice: as checked by the verifier, and as equal to the verifier's
    // row.
    let (of_f16, reasons, loss) = status("f16", &[20, 40], 0.012);
    assert_eq!(of_f16, Status::Wrong, "{loss:?}");
    assert_eq!((loss.positions, loss.differing), (2 * 15 * 64, 30));
    let why = "30 of 1,920 generated tokens differ from those of `patient-original`: in sum 0.36 nats less likely; the bound for f16 on \
               this model is 0.23";
    assert_eq!(reasons, [why]);
    // A smaller loss is within the bound of f16, and the same loss is within that of bf16.
    assert_eq!(status("f16", &[3], 0.001).0, Status::Agrees);
    assert_eq!(status("bf16", &[20, 40], 0.012).0, Status::Agrees);
    // In one output, the same engine token in place of the same verifier token counts once.
    let mut record = with_rms(0.001, "f16", "f16");
    add_dtype_costs(&mut record);
    add_checked_outputs(&mut record, ENGINE, &[3, 9, 27], 0.001);
    for token in record.checked_outputs.iter_mut().flat_map(|it| &mut it.differing) {
        token.engine_token = 100;
    }
    assert_eq!(engine(&record).token_loss.unwrap().differing, 15);
}

#[test]
fn a_token_that_is_no_near_tie_is_found_at_any_position_of_an_exact_f32_engine() {
    let status = |gap| {
        let mut record = checked();
        add_checked_outputs(&mut record, ENGINE, &[33], gap);
        engine(&record)
    };
    assert_eq!(status(0.004).status, Status::Agrees);
    let found = status(0.03);
    assert_eq!(found.status, Status::Wrong);
    assert!(found.reasons[0].contains("at token 33 of `decode` sample 0"), "{found:?}");
}

// Tokens.

#[test]
fn wrong_tokens_from_position_30_on_are_found_even_if_the_scores_are_exact() {
    let mut record = checked();
    add_wrong_tokens(&mut record);
    let found = engine(&record);
    assert_eq!((found.status, found.cell().as_str()), (Status::Wrong, "wrong"));
    let why = "from token 30 of `decode` sample 0 (block 0) on, its tokens are 6.2 nats less likely than those of \
               `patient-original`, on average over 34 tokens";
    assert_eq!(found.reasons[0], why);
    assert_eq!(found.first_difference(), Some(30));
    // At 4 bits, these scores are within the bounds, but the tokens are still wrong.
    let mut record = with_rms(0.3, "q4_0", "f32");
    add_wrong_tokens(&mut record);
    assert_eq!(engine(&record).status, Status::Wrong);
}

#[test]
fn a_difference_at_a_near_tie_is_not_wrong() {
    let mut record = checked();
    replace_ids(&mut record, ENGINE, |position| (position >= 30).then_some(9));
    add_reference_tokens(&mut record, ENGINE, |position| if position == 30 { 0.004 } else { 0.0 });
    let found = engine(&record);
    assert_eq!(found.status, Status::Agrees, "{found:?}");
    let why = "from token 30 of `decode` sample 0 (block 0) on, its tokens differ, after a near tie (two tokens that differ by 0.0040 nats)";
    assert_eq!(found.reasons, [why]);
}

#[test]
fn a_difference_without_a_near_tie_is_wrong_in_f32_but_not_in_bf16() {
    let mut record = checked();
    replace_ids(&mut record, ENGINE, |position| (position == 63).then_some(9));
    add_reference_tokens(&mut record, ENGINE, |position| if position == 63 { 0.05 } else { 0.0 });
    let found = engine(&record);
    assert_eq!(found.status, Status::Wrong);
    assert!(found.reasons[0].contains("at token 63") && found.reasons[0].contains("0.050 nats"), "{found:?}");
    set_dtypes(&mut record, ENGINE, "bf16", "bf16");
    set_scores(&mut record, ENGINE, |_| Some(0.01));
    assert_eq!(engine(&record).status, Status::Agrees);
}

#[test]
fn an_f32_engine_is_unverified_if_its_first_difference_was_not_checked() {
    let mut record = checked();
    set_continued(&mut record, ENGINE, [vec![VERIFIER_ID; 20], vec![9; 12]].concat());
    let found = engine(&record);
    assert_eq!(found.status, Status::Unverified);
    let why = "it differs from `patient-original` at token 20 of the held-out prompt's continuation; the verifier did not check that token";
    assert_eq!(found.reasons, [why]);
    // At this difference of scores, the different token may be a near tie.
    set_scores(&mut record, ENGINE, |_| Some(5e-4));
    assert_eq!(engine(&record).status, Status::Agrees);
}

#[test]
fn an_engine_that_masks_eos_is_compared_up_to_the_first_eos() {
    let mut record = checked();
    replace_ids(&mut record, VERIFIER, |position| (position >= 40).then_some(2));
    record.launches.iter_mut().for_each(|it| {
        it.loaded.get_or_insert_default().facts.eos_ids = Some(vec![2]);
    });
    assert_eq!(engine(&record).status, Status::Unverified);
    for launch in launches(&mut record, ENGINE) {
        launch.hello.get_or_insert_default().capabilities.ignore_eos = protocol::IgnoreEos::Masked;
    }
    let found = engine(&record);
    assert_eq!(found.status, Status::Exact, "{found:?}");
    assert_eq!(found.greedy.unwrap().compared, 32 + 15 * 40);
}

#[test]
fn an_engine_with_another_prompt_token_count_is_wrong() {
    let mut record = checked();
    samples(&mut record, ENGINE).for_each(|it| it.iteration.sequences[0].prompt_tokens += 1);
    let why = "expected 32 prompt tokens in `decode` sample 0 (block 0), got 33";
    assert_eq!((engine(&record).status, engine(&record).reasons), (Status::Wrong, vec![why.to_string()]));
    // For an engine that takes text, the count depends on its tokenizer.
    for launch in launches(&mut record, ENGINE) {
        launch.hello.get_or_insert_default().capabilities.prompt_ids = false;
    }
    assert_eq!(engine(&record).status, Status::Exact);
}

// Missing checks.

#[test]
fn an_engine_without_score_is_unverified_or_wrong() {
    let mut record = checked();
    record.scored.retain(|it| it.configuration != ENGINE);
    add_not_checked(&mut record, "offers no `score`");
    let found = engine(&record);
    assert_eq!(found.status, Status::Unverified);
    assert_eq!(found.reasons, ["offers no `score`"]);
    add_wrong_tokens(&mut record);
    assert_eq!(engine(&record).status, Status::Wrong);
}

#[test]
fn an_engine_without_ids_and_score_is_unverified_with_the_reason() {
    let mut record = checked();
    record.scored.retain(|it| it.configuration != ENGINE);
    record.continued.retain(|it| it.configuration != ENGINE);
    samples(&mut record, ENGINE).for_each(|it| it.iteration.sequences[0].output_ids = None);
    let neither = "it gave neither log-probabilities nor ids to compare";
    assert_eq!(engine(&record).reasons, ["the tokens in `decode` were not checked", neither]);
    record.take(Entry::NotChecked(NotChecked {
        configuration: Some(ENGINE),
        reason: "gives text\nalone".into(),
        hint: Some("none".into()),
        ..NotChecked::default()
    }));
    let found = engine(&record);
    assert_eq!((found.status, found.cell().as_str()), (Status::Unverified, "unverified"));
    assert_eq!(found.reasons, ["the tokens in `decode` were not checked", "gives text alone; hint: none"]);
}

#[test]
fn only_an_f32_engine_can_be_the_verifier() {
    let mut record = checked();
    set_dtypes(&mut record, VERIFIER, "f32", "bf16");
    let found = Agreement::of(&record);
    for agreement in &found {
        assert_eq!(agreement.status, Status::Unverified, "{agreement:?}");
        let why = "the verifier `patient-original` runs in bf16, but must run in f32; hint: `--verifier` with an engine or a preset in f32";
        assert_eq!(agreement.reasons, [why]);
    }
    // Stored answers replace that verifier, and the engine is compared with them.
    add_reference_answers(&mut record, -2.0);
    let found = Agreement::of(&record);
    let stored = Against::ReferenceAnswers { by: "patient-original 0.1.0".into() };
    assert_eq!((found[ENGINE].rms(), &found[ENGINE].against), (Some(0.0), &stored));
    assert_eq!((found[VERIFIER].rms(), &found[VERIFIER].against), (Some(0.0), &stored));
    // Stored answers do not check measured tokens.
    for agreement in &found {
        assert_eq!(agreement.status, Status::Unverified);
        assert_eq!(agreement.reasons, ["the measured tokens were not checked: no verifier ran"]);
    }
}

// Checks of measured tokens.

#[test]
fn reference_answers_alone_leave_measured_tokens_unverified() {
    let mut record = checked();
    add_reference_answers(&mut record, -2.0);
    // No measured request of the engine has a prompt that the verifier answered.
    samples(&mut record, ENGINE).for_each(|it| it.prompt_hash.push_str(" of the engine"));
    let found = Agreement::of(&record);
    assert_eq!(found[VERIFIER].status, Status::Exact, "{:?}", found[VERIFIER]);
    assert_eq!(found[ENGINE].status, Status::Unverified);
    assert_eq!(found[ENGINE].reasons, ["the tokens in `decode` were not checked"]);
    add_reference_tokens(&mut record, ENGINE, |_| 0.0);
    assert_eq!(engine(&record).status, Status::Exact);
}

/// A record of an exact engine with one more workload, whose tokens were not checked.
fn with_unchecked_workload() -> RunRecord {
    let mut record = checked();
    let mut case_of_ttft =
        record.header.plan.cases.iter().find(|it| it.configuration == ENGINE).unwrap().clone();
    case_of_ttft.workload.label = "ttft".into();
    let case = record.header.plan.cases.len();
    record.header.plan.cases.push(case_of_ttft);
    assert_eq!(engine(&record).status, Status::Exact);
    let mut sample = record.samples.iter().find(|it| it.kind == RequestKind::Measured).unwrap().clone();
    (sample.case, sample.prompt_hash) = (case, "another".into());
    sample.iteration.sequences[0].output_ids.as_mut().unwrap().fill(77);
    record.take(Entry::Sample(Box::new(sample)));
    record
}

#[test]
fn one_unchecked_workload_makes_an_engine_unverified() {
    let mut record = with_unchecked_workload();
    let found = engine(&record);
    assert_eq!(found.status, Status::Unverified);
    assert_eq!(found.reasons, ["the tokens in `ttft` were not checked"]);
    record.take(Entry::NotChecked(NotChecked {
        model: Some("/m".into()),
        reason: "the 10 s of the check were over".into(),
        hint: Some("--budget 40s".into()),
        ..NotChecked::default()
    }));
    let why = "the tokens in `ttft` were not checked: the 10 s of the check were over; hint: `--budget 40s`";
    assert_eq!(engine(&record).reasons, [why]);
    assert_eq!(engine(&record).recorded_hint(), Some("--budget 40s"));
    add_reference_tokens(&mut record, ENGINE, |_| 6.2);
    assert_eq!(engine(&record).status, Status::Wrong);
}

#[test]
fn a_hint_that_several_reasons_share_is_given_once() {
    let mut record = with_unchecked_workload();
    record.scored.retain(|it| it.configuration != ENGINE);
    let hint = Some("--budget 80s".to_string());
    let not_checked = |configuration, model: Option<&str>, reason: &str| NotChecked {
        configuration,
        model: model.map(String::from),
        reason: reason.into(),
        hint: hint.clone(),
        ..NotChecked::default()
    };
    record.take(Entry::NotChecked(not_checked(Some(ENGINE), None, "the text was not scored")));
    record.take(Entry::NotChecked(not_checked(None, Some("/m"), "the budget left no time")));
    let found = engine(&record);
    assert_eq!(found.status, Status::Unverified);
    let unchecked = "the tokens in `ttft` were not checked: the budget left no time; hint: `--budget 80s`";
    assert_eq!(found.reasons, [unchecked, "the text was not scored"]);
    assert_eq!(found.recorded_hint(), Some("--budget 80s"));
}

#[test]
fn sampled_tokens_leave_an_engine_unverified() {
    let mut record = checked();
    for case in &mut record.header.plan.cases {
        case.workload.sampling = Some(protocol::Sampling { temperature: 0.8, ..Default::default() });
    }
    let found = Agreement::of(&record);
    assert_eq!(found[VERIFIER].status, Status::Exact);
    assert_eq!(found[ENGINE].status, Status::Unverified);
    assert_eq!(found[ENGINE].reasons, ["sampled tokens cannot be checked; hint: `--temperature 0`"]);
    set_scores(&mut record, ENGINE, |_| Some(0.5));
    assert_eq!(engine(&record).status, Status::Wrong);
}

#[test]
fn an_engine_that_takes_text_and_gives_other_ids_is_unverified() {
    let mut record = checked();
    replace_ids(&mut record, ENGINE, |_| Some(9));
    set_scores(&mut record, ENGINE, |_| Some(5e-4));
    for launch in launches(&mut record, ENGINE) {
        launch.hello.get_or_insert_default().capabilities.prompt_ids = false;
    }
    let found = engine(&record);
    assert_eq!(found.status, Status::Unverified);
    assert_eq!(found.reasons, ["takes text, so its prompt ids may differ from the verifier's"]);
}

#[test]
fn tokens_of_one_shot_processes_are_unverified_with_the_mode_as_their_reason() {
    let mut record = checked();
    record.header.plan.mode = crate::plan::Mode::OneShot;
    replace_ids(&mut record, ENGINE, |_| Some(9));
    set_scores(&mut record, ENGINE, |_| Some(5e-4));
    let mut for_checks = launches(&mut record, ENGINE).next().unwrap().clone();
    (for_checks.launch, for_checks.for_output_checks) = (record.launches.len() as u32, true);
    launches(&mut record, ENGINE).for_each(|launch| launch.hello = None);
    record.launches.push(for_checks);
    let found = engine(&record);
    assert_eq!(found.status, Status::Unverified);
    let why = "`--mode one-shot` sends text, so the measured tokens cannot be checked";
    assert_eq!(found.reasons, [format!("{why}; hint: leave out `--mode one-shot`")]);
    assert_eq!(found.lacking, Vec::<&str>::new());
}

#[test]
fn an_engine_without_scores_of_the_longest_held_out_text_is_unverified() {
    let mut record = checked();
    record.held_out[0].sequences.insert(0, vec![1; 128]);
    for scored in &mut record.scored {
        scored.sequence = usize::from(scored.configuration == VERIFIER);
        if scored.configuration == ENGINE {
            scored.logprobs.truncate(127);
        }
    }
    let mut short = record.scored.iter().find(|it| it.configuration == VERIFIER).unwrap().clone();
    (short.sequence, short.logprobs) = (0, short.logprobs[..127].to_vec());
    record.take(Entry::Scored(short));
    let found = engine(&record);
    assert_eq!((found.status, found.cell().as_str()), (Status::Unverified, "unverified"));
    let why = "the longest held-out text, of 1,152 tokens, was not scored";
    assert_eq!(found.reasons, [why]);
    let why =
        "the held-out text of 1,152 tokens was not scored: it would take 30 s, and the check had 10 s left";
    add_not_checked(&mut record, why);
    assert_eq!(engine(&record).reasons, [why]);
}

#[test]
fn the_verifier_is_compared_with_reference_answers() {
    let mut record = checked();
    add_reference_answers(&mut record, -2.5);
    let found = Agreement::of(&record);
    assert_eq!((found[VERIFIER].status, found[VERIFIER].rms()), (Status::Wrong, Some(0.5)));
}

#[test]
fn without_output_checks_every_engine_is_unverified() {
    let record = not_checked();
    let found = engine(&record);
    assert_eq!(found.status, Status::Unverified);
    assert_eq!(found.reasons, ["no verifier checked this model in f32"]);
    assert_eq!(no_checks(&record), None);
    let mut off = checked();
    set_scores(&mut off, ENGINE, |_| Some(9.0));
    off.header.plan.verification = Verification::Off;
    assert_eq!((engine(&off).status, no_checks(&off)), (Status::Unverified, Some(NoChecks::ByRequest)));
    let mut old = checked();
    old.header.record_version = 2;
    assert_eq!((engine(&old).status, no_checks(&old)), (Status::Unverified, Some(NoChecks::ByAge)));
}

#[test]
fn a_baseline_program_has_the_status_of_the_current_program_until_it_is_checked() {
    let mut record = with_rms(0.5, "f32", "f32");
    let baseline = Configuration {
        label: "beacon (baseline)".into(),
        role: Some(Role::Baseline { of: ENGINE }),
        ..record.header.plan.configurations[ENGINE].clone()
    };
    record.header.plan.configurations.push(baseline);
    assert_eq!(wrong_outputs(&record), [false, true, false, true]);
    set_scores(&mut record, 3, |_| Some(0.0));
    set_continued(&mut record, 3, vec![VERIFIER_ID; 32]);
    assert_eq!(wrong_outputs(&record), [false, true, false, false]);
}

// Prompts whose next token depends on their first half.

/// Marks every second measured request of the engine as a dependent prompt. The verifier checked all of them, and in `differing`
/// of them found its own token likelier than the engine's by `gap` nats.
fn add_dependent_answers(record: &mut RunRecord, gap: f64, differing: usize) -> usize {
    let measured = samples(record, ENGINE).filter(|it| it.kind == RequestKind::Measured);
    let mut dependent = Vec::new();
    for sample in measured.step_by(2) {
        sample.dependent = true;
        sample.iteration.sequences[0].output_ids.as_mut().unwrap()[0] = 9;
        dependent.push((sample.launch, sample.case, sample.index));
    }
    for (number, &(launch, case, index)) in dependent.iter().enumerate() {
        let token = DifferingToken {
            position: 0,
            engine_token: 9,
            verifier_token: VERIFIER_ID,
            engine_logprob: Some(-0.1 - gap),
            verifier_logprob: -0.1,
        };
        let differing = if number < differing { vec![token] } else { Vec::new() };
        let checked =
            CheckedOutput { verifier: VERIFIER, launch, case, index, positions: 1, differing, read: None };
        record.take(Entry::CheckedOutput(checked));
    }
    dependent.len()
}

#[test]
fn an_engine_with_unlikely_tokens_after_dependent_prompts_is_wrong() {
    let mut record = checked();
    set_dtypes(&mut record, ENGINE, "bf16", "bf16");
    let answers = add_dependent_answers(&mut record, 0.5, 5);
    let found = engine(&record);
    let early_text = found.early_text.as_ref().unwrap();
    assert_eq!((early_text.answers, early_text.differing), (answers, 5));
    assert_eq!(found.status, Status::Wrong, "{:?}", found.reasons);
    let expected = format!(
        "it computes only a part of each prompt, or computes long prompts wrong. 5 of its {answers} tokens that can depend on \
         the first half of a prompt are less likely than those of `patient-original` by more than 0.10 nats."
    );
    assert!(found.reasons[0].starts_with(&expected), "{:?}", found.reasons);
}

#[test]
fn tokens_that_rounding_explains_after_dependent_prompts_are_not_wrong() {
    let is_wrong = |dtype: &str, gap: f64, differing: usize| {
        let mut record = checked();
        set_dtypes(&mut record, ENGINE, dtype, dtype);
        add_dependent_answers(&mut record, gap, differing);
        engine(&record).reasons.concat().contains("a part of each prompt")
    };
    assert!(is_wrong("bf16", 0.2, 5) && is_wrong("q4_0", 1.5, 5));
    // A few unlikely tokens, many near ties, or the gaps that weights in 4 bits cause.
    assert!(!is_wrong("bf16", 0.9, 3) && !is_wrong("bf16", 0.02, 8) && !is_wrong("q4_0", 1.0, 8));
}

#[test]
fn an_unlikely_token_after_a_dependent_prompt_is_wrong_in_8_bits_but_not_in_4_bits() {
    let is_wrong = |dtype: &str| {
        let mut record = checked();
        set_dtypes(&mut record, ENGINE, dtype, dtype);
        replace_ids(&mut record, ENGINE, |position| (position == 0).then_some(9));
        add_reference_tokens(&mut record, ENGINE, |position| if position == 0 { 4.5 } else { 0.0 });
        let first = record.reference_tokens[0].clone();
        record.reference_tokens.retain(|it| (it.launch, it.index) == (first.launch, first.index));
        samples(&mut record, ENGINE).for_each(|it| it.dependent = it.kind == RequestKind::Measured);
        engine(&record).is_wrong()
    };
    assert_eq!(["q8_0", "q4_0"].map(is_wrong), [true, false]);
}

#[test]
fn dependent_prompts_with_the_token_that_the_verifier_measured_are_checked_answers() {
    let mut record = checked();
    for configuration in [VERIFIER, ENGINE] {
        let measured = samples(&mut record, configuration).filter(|it| it.kind == RequestKind::Measured);
        measured.for_each(|it| it.dependent = true);
    }
    let early_text = engine(&record).early_text.unwrap();
    assert!(early_text.answers > 10 && early_text.differing == 0, "{early_text:?}");
}
