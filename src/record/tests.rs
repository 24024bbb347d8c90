use protocol::Loaded;

use super::*;
use crate::plan::{Configuration, Role};
use stats::StoppedBy;

fn lines(entries: &[Entry]) -> Vec<u8> {
    entries.iter().flat_map(protocol::encode).collect()
}

/// A header with one case of one configuration.
fn header() -> Header {
    let workload = serde_json::json!({
        "scenario": "decode", "label": "decode", "kind": "warm", "headline": "decode_rate",
        "prompt": {"tokens": 32}, "max_new_tokens": 8, "ignore_eos": true, "rounds": 3,
    });
    let case = serde_json::from_value(serde_json::json!({"configuration": 0, "workload": workload})).unwrap();
    let mut header = Header { record_version: RECORD_VERSION, ..Header::default() };
    header.plan.configurations = vec![Default::default()];
    header.plan.cases = vec![case];
    header
}

fn entries() -> Vec<Entry> {
    vec![
        Entry::Header(Box::new(header())),
        Entry::Launch(Box::new(Launch { launch: 4, ..Launch::default() })),
        Entry::Sample(Box::new(Sample { launch: 4, index: 3, ..Sample::default() })),
        Entry::Warning(Warning { configuration: None, message: "noisy".into() }),
        Entry::End(End::Finished.into()),
    ]
}

#[test]
fn a_record_reads_back_as_it_was_written() {
    let record = RunRecord::parse(lines(&entries()).as_slice()).unwrap();
    assert_eq!((record.samples[0].index, record.warnings.len(), record.end), (3, 1, Some(End::Finished)));
}

#[test]
fn entries_read_back_as_they_were_written() {
    let mut all = entries();
    let loaded = Some(Loaded::default());
    all.push(Entry::Launch(Box::new(Launch { block: 2, loaded, ..Launch::default() })));
    all.push(Entry::WarmUp(WarmUp { launch: 1, case: 2, requests: 3, ended_by: WarmUpEnd::Time }));
    all.push(Entry::Closed(Closed {
        workload: "decode".into(),
        blocks: 8,
        by: StoppedBy::Width,
        needs_budget: None,
    }));
    all.push(Entry::Failure(Failure { kind: FailureKind::Exited, ..Failure::default() }));
    for entry in all {
        assert_eq!(Entry::read(&protocol::encode(&entry)).unwrap(), entry);
    }
}

#[test]
fn the_budget_of_the_last_entry_is_the_hint_of_each_entry_about_a_lack_of_time() {
    let no_time = Failure { kind: FailureKind::NoTime, ..Failure::default() };
    let exited = Failure { kind: FailureKind::Exited, ..Failure::default() };
    let closed =
        |blocks, by| Entry::Closed(Closed { workload: "decode".into(), blocks, by, needs_budget: None });
    let all = [
        Entry::Header(Box::new(header())),
        Entry::Failure(no_time),
        Entry::Failure(exited),
        Entry::NotChecked(NotChecked { needs_time: true, ..NotChecked::default() }),
        Entry::NotChecked(NotChecked::default()),
        closed(3, StoppedBy::Time),
        closed(5, StoppedBy::Time),
        Entry::End(RunEnd { needs_budget: Some("2m".into()), ..End::Finished.into() }),
    ];
    let record = RunRecord::parse(lines(&all).as_slice()).unwrap();
    let hint = Some("--budget 2m".to_string());
    let of_failures: Vec<_> = record.failures.iter().map(|it| it.hint.clone()).collect();
    assert_eq!(of_failures, [hint.clone(), None]);
    let of_checks: Vec<_> = record.not_checked.iter().map(|it| it.hint.clone()).collect();
    assert_eq!(of_checks, [hint, None]);
    let budgets: Vec<_> = record.closed.iter().map(|it| it.needs_budget.clone()).collect();
    assert_eq!(budgets, [Some("2m".to_string()), None]);
    assert_eq!(record.needs_budget.as_deref(), Some("2m"));
}

#[test]
fn an_entry_may_have_its_tag_last_and_unknown_fields() {
    let line = br#"{"field_of_a_later_version":[1,{"x":null}],"configuration":null,"message":"noisy","entry":"warning"}"#;
    let expected = Entry::Warning(Warning { configuration: None, message: "noisy".into() });
    assert_eq!(Entry::read(line).unwrap(), expected);
}

#[test]
fn an_unknown_kind_of_entry_is_an_error_with_its_line() {
    let mut bytes = lines(&entries()[..3]);
    bytes.extend(b"{\"entry\":\"rumour\"}\n");
    // An unknown entry in the last line counts as an incomplete line.
    assert_eq!(RunRecord::parse(bytes.as_slice()).unwrap().samples.len(), 1);
    bytes.extend(lines(&entries()[3..]));
    let error = RunRecord::parse(bytes.as_slice()).unwrap_err().to_string();
    assert!(error.starts_with("line 4 is damaged: it is not an entry of a run record\nhint: "), "{error}");
}

#[test]
fn a_record_cut_off_anywhere_loses_at_most_its_last_entry() {
    let bytes = lines(&entries());
    let header_end = bytes.iter().position(|&byte| byte == b'\n').unwrap();
    for cut in header_end..bytes.len() {
        let record = RunRecord::parse(&bytes[..cut]).unwrap();
        let complete = bytes[..cut].iter().filter(|&&byte| byte == b'\n').count();
        let entries = 1
            + record.launches.len()
            + record.samples.len()
            + record.warnings.len()
            + usize::from(record.end.is_some());
        assert!(entries >= complete, "cut at {cut}: {entries} of {complete}");
    }
}

#[test]
fn a_record_of_version_3_is_read_with_the_names_of_version_4() {
    let old = [
        r#"{"entry":"launch","launch":1,"configuration":0,"block":0,"proves":true,"pid":7}"#,
        r#"{"entry":"warm_up","launch":1,"case":2,"requests":3,"ended_by":"asked"}"#,
        r#"{"entry":"closed","workload":"decode","blocks":5,"by":"asked"}"#,
        r#"{"entry":"closed","workload":"decode","blocks":20,"by":"last_look"}"#,
        r#"{"entry":"kept","model":"m","by":"e 1","logprobs":[[-1.0]],"continued":[3]}"#,
        r#"{"entry":"unproved","configuration":0,"reason":"no time"}"#,
        r#"{"entry":"opinion","witness":1,"launch":2,"case":3,"index":4,"place":5,"theirs":6,"own":7,
            "theirs_logprob":-1.5,"own_logprob":-0.5}"#,
    ];
    let (launch, case) = (1, 2);
    let new = [
        Entry::Launch(Box::new(Launch { launch, for_output_checks: true, pid: 7, ..Launch::default() })),
        Entry::WarmUp(WarmUp { launch, case, requests: 3, ended_by: WarmUpEnd::SetByUser }),
        Entry::Closed(Closed {
            workload: "decode".into(),
            blocks: 5,
            by: StoppedBy::Fixed,
            needs_budget: None,
        }),
        Entry::Closed(Closed {
            workload: "decode".into(),
            blocks: 20,
            by: StoppedBy::LastAnalysis,
            needs_budget: None,
        }),
        Entry::ReferenceAnswers(ReferenceAnswers {
            model: "m".into(),
            by: "e 1".into(),
            logprobs: vec![vec![Some(-1.0)]],
            continued: vec![3],
        }),
        Entry::NotChecked(NotChecked {
            configuration: Some(0),
            reason: "no time".into(),
            ..NotChecked::default()
        }),
        Entry::ReferenceToken(ReferenceToken {
            verifier: 1,
            launch: 2,
            case: 3,
            index: 4,
            position: 5,
            engine_token: 6,
            verifier_token: 7,
            engine_logprob: Some(-1.5),
            verifier_logprob: Some(-0.5),
        }),
    ];
    for (old, new) in old.iter().zip(new) {
        assert_eq!(Entry::read(old.as_bytes()).unwrap(), new, "{old}");
    }
    let stored = br#"{"entry":"stored_answers","model":"m","by":"e 1","logprobs":[],"continued":[3]}"#;
    assert!(matches!(Entry::read(stored), Ok(Entry::ReferenceAnswers(answers)) if answers.continued == [3]));
    // Fields within entries have new names too.
    let sample = r#"{"entry":"sample","launch":1,"case":2,"index":0,"role":"discarded","prompt_hash":"","sent_ns":0,
        "answered_ns":0,"iteration":{"start_ns":0,"end_ns":0,"sequences":[]}}"#;
    let Entry::Sample(sample) = Entry::read(sample.as_bytes()).unwrap() else { panic!("no sample") };
    assert_eq!(sample.kind, RequestKind::Discarded);
    let gpu: GpuPass = serde_json::from_str(r#"{"index":0,"looks":9,"throttled_looks":2}"#).unwrap();
    assert_eq!((gpu.samples, gpu.throttled_samples), (9, Some(2)));
    let configuration = r#"{"label":"a (twin)","engine":"a","command":[],"model":{"name":"m","path":"m"},"device":"cpu","threads":1,
        "vouches":true,"beside":{"what":"witness"}}"#;
    let configuration: Configuration = serde_json::from_str(configuration).unwrap();
    assert_eq!((configuration.role, configuration.verifies), (Some(Role::Verifier), true));
}

#[test]
fn a_broken_line_in_the_middle_is_an_error_with_its_number() {
    let mut bytes = lines(&entries()[..1]);
    bytes.extend(b"{\"entry\":\"sam\n");
    bytes.extend(lines(&entries()[1..]));
    assert!(RunRecord::parse(bytes.as_slice()).unwrap_err().to_string().starts_with("line 2"));
}

#[test]
fn a_record_of_a_later_version_is_refused() {
    let header = Header { record_version: 99, ..Header::default() };
    let error = RunRecord::parse(lines(&[Entry::Header(Box::new(header))]).as_slice()).unwrap_err();
    assert!(error.to_string().contains("record version 99"));
}

/// The error that this entry causes after a header and a launch.
fn error_of(entry: Entry) -> String {
    let mut all = entries()[..2].to_vec();
    all.push(entry);
    RunRecord::parse(lines(&all).as_slice()).unwrap_err().to_string()
}

#[test]
fn an_invalid_index_is_an_error_with_its_line_and_field() {
    let launch = |launch, configuration| {
        Entry::Launch(Box::new(Launch { launch, configuration, ..Launch::default() }))
    };
    let sample = |launch, case| Entry::Sample(Box::new(Sample { launch, case, ..Sample::default() }));
    let failure = Failure { configuration: 1, ..Failure::default() };
    let warning = Warning { configuration: Some(1), message: "noisy".into() };
    let scored = HeldOutScores { launch: 4, sequence: 0, ..HeldOutScores::default() };
    let reference = ReferenceToken { launch: 4, verifier: 7, ..ReferenceToken::default() };
    let configuration_error = "`configuration` is 1, but the number of configurations in the plan is 1";
    for (entry, expected) in [
        (sample(4, 9), "`case` is 9, but the number of cases in the plan is 1"),
        (sample(5, 0), "`launch` is 5, and no earlier launch has that number"),
        (launch(4, 0), "`launch` is 4, and an earlier launch has that number"),
        (launch(0, 1), configuration_error),
        (Entry::Failure(failure), configuration_error),
        (Entry::Warning(warning), configuration_error),
        (Entry::Scored(scored), "`sequence` is 0, but the number of held-out texts of its model is 0"),
        (
            Entry::ReferenceToken(reference),
            "`verifier` is 7, but the number of configurations in the plan is 1",
        ),
    ] {
        assert_eq!(error_of(entry), format!("line 3: {expected}"));
    }
}

#[test]
fn an_invalid_index_in_the_plan_is_an_error_with_its_field() {
    let error_of = |change: fn(&mut Header)| {
        let mut header = header();
        change(&mut header);
        let header = Entry::Header(Box::new(header));
        RunRecord::parse(lines(&[header]).as_slice()).unwrap_err().to_string()
    };
    let case_error = error_of(|header| header.plan.cases[0].configuration = 3);
    let expected =
        "line 1: `plan.cases[0].configuration` is 3, but the number of configurations in the plan is 1";
    assert_eq!(case_error, expected);
    let twin_error = error_of(|header| header.plan.configurations[0].role = Some(Role::Twin { of: 1 }));
    assert!(twin_error.starts_with("line 1: `plan.configurations[0].role.of` is 1"), "{twin_error}");
}

#[test]
fn a_failure_of_a_launch_that_was_not_recorded_is_read() {
    let mut all = entries()[..2].to_vec();
    all.push(Entry::Failure(Failure { launch: Some(77), case: Some(0), ..Failure::default() }));
    assert_eq!(RunRecord::parse(lines(&all).as_slice()).unwrap().failures.len(), 1);
}
