use super::*;
use crate::record::specimen::timed::{measured, selection};

/// An event, with the estimate of a sample.
type Estimated = (Event, Option<&'static str>);

fn sampled(workload: &str, estimate: &'static str) -> Estimated {
    let (label, workload) = ("beacon".into(), workload.into());
    (Event::Sampled { label, workload, warmup: false, launch: 0, case: 0 }, Some(estimate))
}

fn take(state: &mut State, (event, estimate): &Estimated) -> Vec<Line> {
    let dtype = matches!(event, Event::Sampled { .. }).then(|| "bf16".into());
    state.take(event, &EventFacts { dtype, estimate: estimate.map(String::from), warned: None })
}

fn lines_of(state: &mut State, events: &[Estimated], display: Display) -> Vec<String> {
    let lines = events.iter().flat_map(|event| take(state, event));
    lines.filter(|line| line.is_shown_in(display)).map(|line| line.text).collect()
}

fn run_events() -> Vec<Estimated> {
    let label = || String::from("beacon");
    let case = |workload: &str| Event::CaseStarted { label: label(), workload: workload.into() };
    let without_estimate = |event| (event, None);
    vec![
        without_estimate(Event::SetUp(SetUpEvent::Started {
            subject: label(),
            step: "building".into(),
            note: Some("10 minutes".into()),
        })),
        without_estimate(Event::SetUp(SetUpEvent::Output {
            subject: label(),
            line: "Compiling beacon-core".into(),
        })),
        without_estimate(Event::SetUp(SetUpEvent::Waiting {
            subject: label(),
            reason: "another cargo has the lock".into(),
        })),
        without_estimate(Event::SetUp(SetUpEvent::Finished { subject: label(), failed: None })),
        without_estimate(Event::RunStarted {
            configurations: 1,
            blocks: Some(3),
            twins: vec!["beacon (twin)".into()],
            record: "r.jsonl".into(),
        }),
        without_estimate(Event::CheckingOutput { label: label(), number: 1, of: 2 }),
        without_estimate(Event::CheckingOutput { label: label(), number: 2, of: 2 }),
        without_estimate(Event::BlockStarted { block: 0, until: 3, requests: 9 }),
        without_estimate(Event::LaunchStarted { label: label() }),
        without_estimate(Event::Loading { label: label(), phase: "weights".into(), fraction: Some(0.4) }),
        without_estimate(Event::Loaded { label: label(), load_ns: 1_534_000_000 }),
        without_estimate(case("ttft 128")),
        sampled("ttft 128", "9.00 ms"),
        sampled("ttft 128", "8.90 ms"),
        without_estimate(case("decode")),
        sampled("decode", "43.1 tok/s"),
        without_estimate(Event::BlockFinished { block: 0 }),
        without_estimate(Event::RunFinished { record: Some("r.jsonl".into()) }),
    ]
}

#[test]
fn a_log_has_one_line_for_each_block() {
    assert_eq!(
        lines_of(&mut State::default(), &run_events(), Display::Log),
        [
            "beacon: building (10 minutes)",
            "beacon: waiting: another cargo has the lock",
            "beacon: done",
            "measuring 1 configuration in 3 blocks; no time budget",
            "beacon (twin): a second copy of that engine; the difference between the two is noise",
            "record: r.jsonl",
            "output checks of 2 engines",
            "block 1 of 3",
            "recorded in r.jsonl",
        ]
    );
}

#[test]
fn a_log_of_steps_has_every_launch_and_every_sample() {
    let lines = lines_of(&mut State::default(), &run_events(), Display::Steps);
    let steps = [
        "block 1 of 3",
        "  beacon: loaded in 1.53 s",
        "  ttft 128: beacon",
        "  ttft 128: beacon 9.00 ms",
        "  ttft 128: beacon 8.90 ms",
        "  decode: beacon",
        "  decode: beacon 43.1 tok/s",
    ];
    assert!(lines.windows(steps.len()).any(|window| window == steps), "{lines:?}");
    let checks =
        ["output checks of 2 engines", "  output check 1 of 2: beacon", "  output check 2 of 2: beacon"];
    assert!(lines.windows(checks.len()).any(|window| window == checks), "{lines:?}");
}

#[test]
fn a_terminal_keeps_only_the_lines_about_set_up_and_about_the_record() {
    assert_eq!(
        lines_of(&mut State::default(), &run_events(), Display::Live),
        [
            "beacon: building (10 minutes)",
            "beacon: waiting: another cargo has the lock",
            "beacon: done",
            "recorded in r.jsonl",
        ]
    );
}

#[test]
fn build_notes_of_embedded_engines_fit_eighty_columns() {
    for engine in crate::engines::manifest::embedded().unwrap() {
        let build = engine.manifest.build.clone().into_iter();
        let notes = build.chain(engine.manifest.devices.values().filter_map(|it| it.build.clone()));
        for note in notes.map(|build| build.note) {
            let step = "bringing its build for cuda up to date".into();
            let started =
                Event::SetUp(SetUpEvent::Started { subject: engine.manifest.name.clone(), step, note });
            for line in lines_of(&mut State::default(), &[(started, None)], Display::Log) {
                assert!(text::width(&line) <= WIDTH, "{line}");
            }
        }
    }
}

/// The clock after this time of the run, of which the blocks took all but 10 s. The current block began `in_block` ago.
fn seconds(ran: u64, in_block: u64) -> Option<Clock> {
    let [ran, measured, in_block] = [ran, ran - 10, in_block].map(Duration::from_secs);
    Some(Clock { ran, measured, in_block })
}

#[test]
fn the_live_line_has_the_current_step_the_share_done_and_the_time_left() {
    let mut state = State::default();
    let events = run_events();
    let live_line = |state: &State| state.bar_text(None, WIDTH);
    lines_of(&mut state, &events[..6], Display::Live);
    assert_eq!(live_line(&state), "output check 1 of 2 · beacon");
    lines_of(&mut state, &events[6..10], Display::Live);
    assert_eq!(live_line(&state), "block 1 of 3 · loading beacon: weights 40 %");
    lines_of(&mut state, &events[10..16], Display::Live);
    let expected = "3 of about 9 requests  block 1 of 3 · decode · beacon (bf16)  43.1 tok/s";
    assert_eq!(live_line(&state), expected);
    // In the first block, only the budget bounds the time left.
    assert_eq!(state.bar_text(seconds(30, 20), WIDTH), live_line(&state));
    state.budget = Some(Duration::from_secs(180));
    assert_eq!(
        state.bar_text(seconds(45, 35), WIDTH),
        "━━────────  25 %  2 min 20 s left  block 1 of 3 · decode · beacon (bf16)"
    );
    // Later, a block takes as long as the blocks before.
    (state.complete_blocks, state.planned_blocks) = (1, 3);
    assert_eq!(
        state.bar_text(seconds(60, 10), WIDTH),
        "━━━━──────  46 %  1 min 10 s left  block 1 of 3 · decode · beacon (bf16)"
    );
    assert_eq!(state.done_text(seconds(60, 10)), " (46 % done, about 1 min 10 s left)");
}

#[test]
fn the_live_line_fits_into_the_terminal() {
    let mut state = State::default();
    take(&mut state, &(Event::BlockStarted { block: 11, until: 20, requests: 2000 }, None));
    let (label, workload) = ("patient-original (twin)".into(), "ttft 512".into());
    let sample = Event::Sampled { label, workload, warmup: false, launch: 0, case: 0 };
    take(&mut state, &(sample, Some("43.1 tok/s")));
    let shown = |width| state.bar_text(seconds(100, 5), width);
    let (wide, narrow) = (shown(200), shown(80));
    assert!(
        wide.ends_with("block 12 of 20 · ttft 512 · patient-original (twin) (bf16)  43.1 tok/s"),
        "{wide}"
    );
    assert!(text::width(&narrow) <= 80 && narrow.contains("block 12 of 20 · ttft 512 · patient"), "{narrow}");
}

#[test]
fn time_left_is_computed_from_complete_blocks_and_from_the_budget() {
    let mut state = State::default();
    let left = |state: &State, clock| Some(state.share_and_time_left(clock?)?.1.as_secs());
    let block = |state: &mut State, block, until| {
        take(state, &(Event::BlockStarted { block, until, requests: 9 }, None));
    };
    block(&mut state, 0, 4);
    // Many fast requests say nothing about the slow ones that follow.
    (0..1000).for_each(|_| drop(take(&mut state, &sampled("decode", "43.1 tok/s"))));
    assert_eq!(left(&state, seconds(30, 20)), None);
    // A block took 20 s, and the second one began 5 s ago: 15 s of it and two blocks are left.
    block(&mut state, 1, 4);
    assert_eq!(left(&state, seconds(35, 5)), Some(55));
    // A block that takes longer than the others is not counted below zero.
    assert_eq!(left(&state, seconds(60, 30)), Some(40));
    (state.budget, state.budget_is_limit) = (Some(Duration::from_secs(40)), true);
    assert_eq!(left(&state, seconds(35, 5)), Some(5));
    // The current block may exceed the default budget, and no block follows it.
    state.budget_is_limit = false;
    assert_eq!(left(&state, seconds(35, 5)), Some(15));
    take(&mut state, &(Event::BlockFinished { block: 3 }, None));
    assert_eq!(left(&state, seconds(90, 1)), None, "after the last block nothing is estimated");
}

#[test]
fn a_failure_stays_on_the_screen_without_control_characters() {
    let failure = Failure {
        kind: crate::record::FailureKind::Exited,
        when: "sample 17".into(),
        message: "\u{1b}[2Jkilled by\nsignal 9".into(),
        ..Failure::default()
    };
    let failed = |failure| (Event::Failed { label: "x".into(), failure }, None);
    let lines = |failure| lines_of(&mut State::default(), &[failed(failure)], Display::Live);
    assert_eq!(lines(failure), ["x: exited at sample 17: killed by signal 9"]);
    let message = "no time: --budget 30s ended before this case was measured".into();
    let no_time = Failure { kind: FailureKind::NoTime, message, ..Failure::default() };
    assert_eq!(lines(no_time), ["x: no time: --budget 30s ended before this case was measured"]);
}

#[test]
fn the_estimate_of_a_sample_is_the_headline_of_its_launch_so_far() {
    let record = measured(&selection(&["a"], &["decode"]), 1, |_| Some(2.0));
    let (event, _) = sampled("decode", "");
    assert_eq!(EventFacts::of(&event, &record).estimate.as_deref(), Some("500 tok/s"));
    assert_eq!(EventFacts::of(&Event::Interrupted, &record).estimate, None);
}
