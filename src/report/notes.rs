//! What the figures of a row must be read with: launches that are far apart, prompts of another length than the others',
//! an engine that does not say whether it ran as it was asked to.

use std::collections::BTreeMap;

use super::Row;
use super::safe::{line, shorten};
use crate::metric::three_digits;
use crate::plan::Prompt;
use crate::record::{Launch, Role, RunRecord, Sample};

/// Of one kind; the others are counted.
const MOST: usize = 5;

/// Each row with its configuration.
pub fn of(record: &RunRecord, rows: &[(usize, Row)]) -> Vec<String> {
    let kinds = [
        (spreads(rows), "rows whose launches are as far apart"),
        (prompts(record), "cases whose prompts have another length"),
        (unstated(record), "engines that do not state what they were asked for"),
        (converted(record), "engines that were given a conversion of the model"),
    ];
    kinds.into_iter().flat_map(|(notes, others)| bounded(notes, others)).collect()
}

fn bounded(mut notes: Vec<String>, others: &str) -> Vec<String> {
    let more = notes.len().saturating_sub(MOST);
    notes.truncate(MOST);
    notes.extend((more > 0).then(|| format!("and {more} more: {others}")));
    notes
}

fn spreads(rows: &[(usize, Row)]) -> Vec<String> {
    let wide = rows.iter().filter_map(|(_, row)| {
        let (label, case, spread) = (&row.engine.label, &row.case.label, three_digits(row.wide_spread()?));
        let remedy = "measure on a quieter machine or with more `--launches`";
        Some(format!("`{label}` `{case}`: its launches differ by {spread}x; {remedy}"))
    });
    wide.collect()
}

/// Where an engine counts other tokens than were planned, or than the first engine of the same case counts.
fn prompts(record: &RunRecord) -> Vec<String> {
    let plan = &record.header.plan;
    let mut first_of: BTreeMap<&str, (String, Range)> = BTreeMap::new();
    let mut notes = Vec::new();
    for (index, case) in plan.cases.iter().enumerate() {
        let Some(configuration) = plan.configurations.get(case.configuration) else { continue };
        let measured = |sample: &&Sample| sample.case == index && sample.role == Role::Measured;
        let samples = || record.samples.iter().filter(measured);
        let Some(range) = Range::of(samples()) else { continue };
        let planned = match &case.workload.prompt {
            Prompt::Tokens(planned) if range == Range::exactly(*planned) => continue,
            Prompt::Tokens(planned) => format!("{planned} were planned"),
            Prompt::Text(_) => {
                let own = || (line(&configuration.label), range);
                let (label, other) = first_of.entry(&case.workload.label).or_insert_with(own);
                if *other == range {
                    continue;
                }
                format!("those of `{label}` {}", other.write())
            }
        };
        let takes_ids = |launch: &Launch| launch.hello.as_ref().is_some_and(|it| it.capabilities.prompt_ids);
        let mut launches = record.launches.iter().filter(|launch| launch.configuration == case.configuration);
        let why = if launches.any(takes_ids) { "" } else { " (it takes text, not ids)" };
        let (label, case) = (line(&configuration.label), line(&case.workload.label));
        notes.push(format!(
            "`{label}` `{case}`: its prompts have {} tokens, {planned}{why}: its rates are its own count",
            range.write()
        ));
    }
    notes
}

/// From the fewest to the most tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Range(u32, u32);

impl Range {
    fn of<'a>(samples: impl Iterator<Item = &'a Sample>) -> Option<Self> {
        let sequences = samples.flat_map(|sample| &sample.iteration.sequences);
        let lengths = sequences.map(|sequence| Self::exactly(sequence.prompt_tokens));
        lengths.reduce(|all, one| Self(all.0.min(one.0), all.1.max(one.1)))
    }

    fn exactly(tokens: u32) -> Self {
        Self(tokens, tokens)
    }

    fn write(self) -> String {
        if self.0 == self.1 { self.0.to_string() } else { format!("{}..{}", self.0, self.1) }
    }
}

/// Where the plan asked for more than the ordinary and a measured engine is silent about it.
fn unstated(record: &RunRecord) -> Vec<String> {
    let plan = &record.header.plan;
    let mut notes = Vec::new();
    for (index, configuration) in plan.configurations.iter().enumerate() {
        let of_it =
            |sample: &Sample| plan.cases.get(sample.case).is_some_and(|case| case.configuration == index);
        if !record.samples.iter().any(of_it) {
            continue;
        }
        let launches = record.launches.iter().filter(|launch| launch.configuration == index);
        let facts = || launches.clone().filter_map(|launch| Some(&launch.loaded.as_ref()?.facts));
        let label = line(&configuration.label);
        let mut note = |asked: &str, what: &str| {
            let asked = shorten(&line(asked), 24);
            notes.push(format!("`{label}`: asked for {asked}, it does not say {what}"));
        };
        let device = configuration.device.as_str();
        if !["", "cpu"].contains(&device) && !facts().any(|facts| facts.device.is_some()) {
            note(device, "what it runs on");
        }
        let stated = |facts: &protocol::Facts| facts.weights_dtype.is_some() || facts.compute_dtype.is_some();
        if let Some(dtype) = configuration.dtype.as_deref().filter(|_| !facts().any(stated)) {
            note(dtype, "what it computes in");
        }
    }
    notes
}

/// Where an engine reads another format than the model's.
fn converted(record: &RunRecord) -> Vec<String> {
    let mut notes = Vec::new();
    for (index, configuration) in record.header.plan.configurations.iter().enumerate() {
        let mut launches = record.launches.iter().filter(|launch| launch.configuration == index);
        let Some(given) = launches.find_map(|launch| launch.converted.as_ref()) else { continue };
        let (label, format, dtype) = (line(&configuration.label), line(&given.format), line(&given.dtype));
        let own = configuration.model.format.as_deref().map_or("the model's format", |own| own);
        notes.push(format!(
            "`{label}` does not read {}: it was given the same weights as {format} in {dtype}",
            line(own)
        ));
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::super::specimen::*;
    use super::super::tests::rendered;
    use super::super::{Report, safe};
    use super::*;
    use crate::plan::Asked;

    fn decoding(names: &[&str]) -> Asked {
        Asked { scenarios: crate::scenario::named("decode").unwrap(), ..asked(names) }
    }

    /// Every launch of a configuration slower than the one before it, by this much.
    fn drifting(mut record: RunRecord, configuration: usize, times: u64) -> RunRecord {
        for sample in &mut record.samples {
            let launch = &record.launches[sample.launch as usize];
            if launch.configuration != configuration {
                continue;
            }
            let slower = times.pow(launch.round);
            for sequence in &mut sample.iteration.sequences {
                sequence.token_ns.as_mut().unwrap().iter_mut().for_each(|ns| *ns *= slower);
            }
            sample.iteration.end_ns *= slower;
            sample.answered_ns = sample.sent_ns + sample.iteration.end_ns;
        }
        record
    }

    #[test]
    fn launches_that_are_far_apart_are_a_note_and_make_the_ratio_unsure() {
        let record = measured(&decoding(&["patient-original", "beacon", "reed"]), &[BASELINE, BEACON, REED]);
        let text = rendered(&drifting(record.clone(), 1, 2), "table", 80);
        let note = "note: `beacon` `decode`: its launches differ by ";
        let said = text.split_once(note).expect(&text).1;
        assert!(said.starts_with("4.") || said.starts_with("3.9"), "{text}");
        assert_eq!(text.matches("its launches differ").count(), 1, "{text}");
        assert_eq!(text.matches("x?").count(), 2, "the row and the legend: {text}");
        assert!(text.lines().all(|line| safe::width(line) <= 80), "{text}");

        // A reference that is far apart makes every ratio unsure, but not that to itself.
        let report = Report::of(&drifting(record.clone(), 0, 2));
        let unsure: Vec<bool> = report.rows.iter().map(|row| row.ratio_is_unsure).collect();
        assert_eq!(unsure, [false, true, true]);

        assert!(Report::of(&record).notes.is_empty());
        assert!(!rendered(&record, "table", 80).contains("x?"));
    }

    #[test]
    fn an_engine_that_was_given_a_conversion_is_a_note() {
        let mut record = measured(&decoding(&["patient-original", "beacon"]), &[BASELINE, BEACON]);
        for launch in record.launches.iter_mut().filter(|launch| launch.configuration == 1) {
            let (format, dtype) = ("gguf".into(), "bf16".into());
            launch.converted = Some(crate::record::Converted { format, dtype, path: "/c".into() });
        }
        let report = Report::of(&record);
        let said = "`beacon` does not read the model's format: it was given the same weights as gguf in bf16";
        assert_eq!(report.notes.iter().filter(|note| note.as_str() == said).count(), 1, "{:?}", report.notes);
    }

    #[test]
    fn of_many_notes_the_first_stand_and_the_others_are_counted() {
        let mut record = measured(&asked(&["beacon"]), &[BEACON]);
        for sample in &mut record.samples {
            sample.iteration.sequences[0].prompt_tokens += 1;
        }
        let notes = Report::of(&record).notes;
        assert_eq!(notes.len(), MOST + 1, "{notes:?}");
        assert_eq!(notes[MOST], "and 1 more: cases whose prompts have another length");
    }

    #[test]
    fn prompts_of_another_length_than_planned_are_a_note() {
        let mut record = measured(&decoding(&["patient-original", "beacon"]), &[BASELINE, BEACON]);
        let theirs = record.samples.iter_mut().filter(|sample| sample.case == 1);
        for (number, sample) in theirs.enumerate() {
            sample.iteration.sequences[0].prompt_tokens = 90 + number as u32 % 7;
        }
        let note = |why: &str| {
            let said = "its prompts have 90..96 tokens, 32 were planned";
            format!("`beacon` `decode`: {said}{why}: its rates are its own count")
        };
        assert_eq!(Report::of(&record).notes, [note(" (it takes text, not ids)")]);
        for launch in &mut record.launches {
            launch.hello.as_mut().unwrap().capabilities.prompt_ids = true;
        }
        assert_eq!(Report::of(&record).notes, [note("")]);
    }

    #[test]
    fn a_prompt_of_text_is_counted_alike_by_all_or_the_difference_is_a_note() {
        let mut record = measured(&decoding(&["patient-original", "beacon"]), &[BASELINE, BEACON]);
        for case in &mut record.header.plan.cases {
            case.workload.prompt = Prompt::Text("Once upon a time".into());
        }
        assert!(Report::of(&record).notes.is_empty());
        record.samples.iter_mut().filter(|sample| sample.case == 1).for_each(|sample| {
            sample.iteration.sequences[0].prompt_tokens = 5;
        });
        let notes = Report::of(&record).notes;
        let said = "`beacon` `decode`: its prompts have 5 tokens, those of `patient-original` 32";
        assert!(notes.len() == 1 && notes[0].starts_with(said), "{notes:?}");
    }

    #[test]
    fn an_engine_that_does_not_say_whether_it_ran_as_asked_is_a_note() {
        let mut asked = decoding(&["patient-original", "beacon"]);
        (asked.devices, asked.dtypes) = (vec!["cuda".into()], vec![Some("bf16".into())]);
        let mut record = measured(&asked, &[BASELINE, BEACON]);
        assert!(Report::of(&record).notes.is_empty());
        for launch in record.launches.iter_mut().filter(|launch| launch.configuration == 1) {
            launch.loaded = None;
        }
        let notes = [
            "`beacon`: asked for cuda, it does not say what it runs on",
            "`beacon`: asked for bf16, it does not say what it computes in",
        ];
        assert_eq!(Report::of(&record).notes, notes);
        record.header.plan.configurations[1].device = "cpu".into();
        record.header.plan.configurations[1].dtype = None;
        assert!(Report::of(&record).notes.is_empty());
    }
}
