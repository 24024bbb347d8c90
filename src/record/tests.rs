use super::*;

fn lines(entries: &[Entry]) -> Vec<u8> {
    entries.iter().flat_map(protocol::encode).collect()
}

fn entries() -> Vec<Entry> {
    vec![
        Entry::Header(Box::new(Header { record_version: RECORD_VERSION, ..Header::default() })),
        Entry::Sample(Box::new(Sample { case: 3, ..Sample::default() })),
        Entry::Warning(Warning { configuration: None, message: "noisy".into() }),
        Entry::End(End::Finished),
    ]
}

#[test]
fn a_record_reads_back_as_it_was_written() {
    let record = RunRecord::parse(lines(&entries()).as_slice()).unwrap();
    assert_eq!((record.samples[0].case, record.warnings.len(), record.end), (3, 1, Some(End::Finished)));
}

#[test]
fn every_kind_of_entry_reads_back_as_it_was_written() {
    let mut all = entries();
    all.push(Entry::Launch(Box::new(Launch {
        block: 2,
        loaded: Some(Loaded::default()),
        ..Launch::default()
    })));
    all.push(Entry::WarmUp(WarmUp { launch: 1, case: 2, requests: 3, ended_by: WarmUpEnd::Time }));
    all.push(Entry::Closed(Closed { workload: "decode".into(), blocks: 8, by: StoppedBy::Width }));
    all.push(Entry::Failure(Failure { kind: "exited".into(), ..Failure::default() }));
    for entry in all {
        assert_eq!(Entry::read(&protocol::encode(&entry)).unwrap(), entry);
    }
}

#[test]
fn an_entry_may_have_its_tag_anywhere_and_fields_of_a_later_program() {
    let line = br#"{"of_later":[1,{"x":null}],"configuration":null,"message":"noisy","entry":"warning"}"#;
    let expected = Entry::Warning(Warning { configuration: None, message: "noisy".into() });
    assert_eq!(Entry::read(line).unwrap(), expected);
}

#[test]
fn an_entry_of_no_known_kind_is_an_error_with_its_line_and_the_kinds_there_are() {
    let mut bytes = lines(&entries()[..2]);
    bytes.extend(b"{\"entry\":\"rumour\"}\n");
    // At the end it is taken for a torn line.
    assert_eq!(RunRecord::parse(bytes.as_slice()).unwrap().samples.len(), 1);
    bytes.extend(lines(&entries()[2..]));
    let error = RunRecord::parse(bytes.as_slice()).unwrap_err().to_string();
    assert!(error.starts_with("line 3: unknown variant `rumour`") && error.contains("warm_up"), "{error}");
}

#[test]
fn a_record_cut_off_at_any_byte_loses_its_last_entry_at_most() {
    let whole = lines(&entries());
    let header = whole.iter().position(|&byte| byte == b'\n').unwrap();
    for cut in header..whole.len() {
        let record = RunRecord::parse(&whole[..cut]).unwrap();
        let complete = whole[..cut].iter().filter(|&&byte| byte == b'\n').count();
        let held = 1 + record.samples.len() + record.warnings.len() + usize::from(record.end.is_some());
        assert!(held >= complete, "cut at {cut}: {held} of {complete}");
    }
}

#[test]
fn a_broken_line_in_the_middle_is_an_error_with_its_number() {
    let mut bytes = lines(&entries()[..1]);
    bytes.extend(b"{\"entry\":\"sam\n");
    bytes.extend(lines(&entries()[1..]));
    assert!(RunRecord::parse(bytes.as_slice()).unwrap_err().to_string().starts_with("line 2"));
}

#[test]
fn a_record_of_another_version_is_refused() {
    let header = Header { record_version: 99, ..Header::default() };
    let error = RunRecord::parse(lines(&[Entry::Header(Box::new(header))]).as_slice()).unwrap_err();
    assert!(error.to_string().contains("record version 99"));
}
