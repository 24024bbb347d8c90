//! The progress of a run on stderr, from its events: a live bar on a terminal, otherwise one plain line for each step.
//!
//! It draws only when an event comes: no thread ticks, so nothing runs while an engine measures.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressFinish, ProgressStyle};

use crate::analysis::metric::Unit;
use crate::analysis::values::headline_so_far;
use crate::cli::{Verbosity, verbosity};
use crate::commands::output::WIDTH;
use crate::engines::setup::SetUpEvent;
use crate::record::{Failure, FailureKind, RunRecord};
use crate::run::Event;
use crate::text;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Display {
    /// A bar that is redrawn, for a terminal.
    Live,
    /// Lines that stay, for a log.
    Plain,
}

impl Display {
    pub fn of_stderr() -> Self {
        let is_live = std::io::stderr().is_terminal() && verbosity() != Verbosity::Quiet;
        if is_live { Self::Live } else { Self::Plain }
    }
}

pub struct Progress {
    state: State,
    bar: Option<ProgressBar>,
    run_started: Option<Instant>,
    last_shown: Option<Instant>,
}

/// The minimum time between two redraws. Thousands of samples may come in a second.
const MIN_REDRAW_INTERVAL: Duration = Duration::from_millis(100);
const DRAWS_PER_SECOND: u8 = 10;
/// The minimum time between two lines of a build in a log.
const MIN_SET_UP_INTERVAL: Duration = Duration::from_secs(5);
const BAR_WIDTH: usize = 20;
/// The minimum number of finished requests for an estimate of the time left.
const MIN_REQUESTS_FOR_TIME_LEFT: u64 = 4;

impl Progress {
    pub fn new(display: Display) -> Self {
        let bar = (display == Display::Live).then(|| {
            let target = ProgressDrawTarget::stderr_with_hz(DRAWS_PER_SECOND);
            ProgressBar::with_draw_target(None, target)
                .with_style(style())
                .with_finish(ProgressFinish::AndClear)
        });
        Self { state: State::default(), bar, run_started: None, last_shown: None }
    }

    /// Takes an event before there is a record.
    pub fn event(&mut self, event: Event) {
        self.show(event, None);
    }

    pub fn event_of_run(&mut self, event: Event, record: &RunRecord) {
        let estimate = estimate(&event, record);
        self.show(event, estimate);
    }

    fn show(&mut self, event: Event, estimate: Option<String>) {
        let is_sample = matches!(event, Event::Sampled { .. });
        if let Event::RunStarted { .. } = event {
            self.run_started = Some(Instant::now());
        }
        let is_finished = matches!(event, Event::RunFinished { .. });
        let lines = self.state.take(&event, estimate.as_deref());
        if !is_printed(&event, verbosity()) {
            return;
        }
        let Some(bar) = &self.bar else {
            lines.iter().for_each(|line| print(&line.text));
            // A long build reports its progress every few seconds.
            if let Event::SetUp(SetUpEvent::Output { .. }) = event {
                let is_due = self.last_shown.is_none_or(|shown| shown.elapsed() >= MIN_SET_UP_INTERVAL);
                let has_text = !self.state.status.ends_with(": ");
                if is_due && has_text {
                    self.last_shown = Some(Instant::now());
                    print(&format!("  {}", self.state.status));
                }
            } else if let Event::SetUp(SetUpEvent::Started { .. }) = event {
                self.last_shown = Some(Instant::now());
            }
            return;
        };
        if is_finished {
            bar.finish_and_clear();
        }
        let is_verbose = verbosity() == Verbosity::Verbose;
        for line in lines.iter().filter(|line| line.is_lasting || is_verbose) {
            bar.suspend(|| print(&line.text));
        }
        if is_finished
            || (is_sample && self.last_shown.is_some_and(|shown| shown.elapsed() < MIN_REDRAW_INTERVAL))
        {
            return;
        }
        self.last_shown = Some(Instant::now());
        // Only this call draws.
        bar.set_message(self.state.bar_text(self.run_started.map(|started| started.elapsed())));
    }
}

/// Whether a display shows an event. `--quiet` leaves only problems, and details need `--verbose`.
fn is_printed(event: &Event, verbosity: Verbosity) -> bool {
    let is_detail = matches!(event, Event::Detail(_) | Event::SetUp(SetUpEvent::Detail(_)));
    let is_problem = matches!(
        event,
        Event::Failed { .. }
            | Event::Warned(_)
            | Event::Interrupted
            | Event::SetUp(SetUpEvent::Warned(_) | SetUpEvent::Finished { failed: Some(_), .. })
    );
    match verbosity {
        Verbosity::Quiet => is_problem,
        Verbosity::Usual => !is_detail,
        Verbosity::Verbose => true,
    }
}

/// The headline of a sample's case, over the samples of its launch so far, as the table prints it.
fn estimate(event: &Event, record: &RunRecord) -> Option<String> {
    let Event::Sampled { launch, case, .. } = *event else { return None };
    headline_so_far(record, launch, case).map(|(metric, value)| metric.unit.show(value))
}

/// One line, cut at the terminal's width. A template that indicatif refuses does not end a run.
fn style() -> ProgressStyle {
    ProgressStyle::with_template("{wide_msg}").unwrap_or_else(|_| ProgressStyle::default_spinner())
}

/// Prints a line. A closed stderr does not end a run.
fn print(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// The events so far, without a clock and without a terminal.
#[derive(Debug, Default)]
struct State {
    /// The requests of the blocks planned so far, and those of them that are done; both include warm-ups.
    requests: u64,
    done: u64,
    /// The text about the block, and the text about the current step, which begins with it.
    block: String,
    status: String,
    /// The workload under measurement, and the latest estimate of each configuration.
    workload: Option<(String, BTreeMap<String, String>)>,
}

/// A line for a log.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Line {
    text: String,
    /// Whether it is printed above a live bar too.
    is_lasting: bool,
}

impl Line {
    /// The line without control characters, with its indent.
    fn safe(self) -> Self {
        let indent = self.text.len() - self.text.trim_start().len();
        let text = format!("{}{}", &"  "[..indent.min(2)], text::line(&self.text));
        Self { text, ..self }
    }
}

impl State {
    /// Takes an event, and returns its lines for a log. `estimate` belongs to a sample.
    fn take(&mut self, event: &Event, estimate: Option<&str>) -> Vec<Line> {
        let mut lines: Vec<_> = self.end_of_rounds(event).into_iter().collect();
        match event {
            Event::SetUp(event) => lines.extend(self.take_set_up(event)),
            Event::RunStarted { configurations, blocks, record } => {
                let blocks = blocks.map_or("as needed".into(), |blocks| blocks.to_string());
                lines.push(step_line(format!(
                    "measuring: configurations: {configurations}; blocks: {blocks}"
                )));
                lines.push(step_line(format!("record: {record}")));
            }
            Event::BlockStarted { block, until, requests } => {
                self.requests = *requests;
                self.block = format!("block {}/{until}", block + 1);
                lines.push(step_line(self.block.clone()));
            }
            Event::LaunchStarted { label } => {
                self.status = format!("{}  {label}: starting", self.block);
                lines.push(step_line(format!("  {label}")));
            }
            Event::Loading { label, phase, fraction } => {
                let percent =
                    fraction.map_or(String::new(), |fraction| format!(" {:.0} %", fraction * 100.0));
                self.status = format!("{}  {label}: loading, {phase}{percent}", self.block);
            }
            Event::Loaded { label, load_ns } => {
                let time = Unit::Nanoseconds.show(*load_ns as f64);
                self.status = format!("{}  {label}: loaded in {time}", self.block);
                lines.push(step_line(format!("  loaded in {time}")));
            }
            Event::CheckingOutput { label } => {
                self.status = format!("checking the output of {label}");
                lines.push(step_line(self.status.clone()));
            }
            Event::CheckingTokens { label, samples } => {
                let samples = text::plural(*samples, "sample");
                self.status = format!("checking the tokens of {samples} with {label}");
                lines.push(step_line(self.status.clone()));
            }
            Event::CaseStarted { label, workload } => {
                self.workload.get_or_insert_with(|| (workload.clone(), BTreeMap::new()));
                self.status = format!("{}  {label}: {workload}, warming up", self.block);
            }
            Event::Sampled { label, workload, warmup, .. } => {
                self.take_sample(label, workload, *warmup, estimate);
            }
            Event::Failed { label, failure } => {
                lines.push(lasting_line(format!("{label}: {}", failure_text(failure))))
            }
            Event::Detail(text) => lines.push(lasting_line(format!("  {text}"))),
            Event::Warned(warning) => lines.push(lasting_line(format!("warning: {}", warning.message))),
            Event::Interrupted => {
                self.status = "interrupted".into();
                lines.push(lasting_line(
                    "interrupted: ending the engines and saving the results; press Ctrl-C again to stop at once".into(),
                ));
            }
            Event::RunFinished { record } => lines.push(lasting_line(match record {
                Some(record) => format!("recorded in {record}"),
                None => "no record: every engine refused what the command line selects".into(),
            })),
        }
        // These texts contain names and output of other programs.
        self.status = text::line(&self.status);
        lines.into_iter().map(Line::safe).collect()
    }

    /// The line with the estimates of a workload when its rounds end: at any event that cannot come between its samples.
    fn end_of_rounds(&mut self, event: &Event) -> Option<Line> {
        let continues = match event {
            Event::Sampled { workload, .. } | Event::CaseStarted { workload, .. } => {
                self.workload.as_ref().is_some_and(|(current, _)| current == workload)
            }
            Event::Warned(_) | Event::Failed { .. } | Event::Detail(_) => true,
            _ => false,
        };
        if continues {
            return None;
        }
        let (workload, estimates) = self.workload.take().filter(|(_, estimates)| !estimates.is_empty())?;
        let estimates: Vec<_> =
            estimates.iter().map(|(label, estimate)| format!("{label} {estimate}")).collect();
        Some(step_line(format!("  {workload}: {}", estimates.join(", "))))
    }

    fn take_set_up(&mut self, event: &SetUpEvent) -> Vec<Line> {
        match event {
            SetUpEvent::Started { subject, step, note } => {
                self.status = format!("{subject}: {step}");
                let note = note.as_ref().map_or(String::new(), |note| format!(" ({note})"));
                let text = text::break_lines(&format!("{}{note}", self.status), WIDTH);
                text.lines().map(|line| lasting_line(line.into())).collect()
            }
            SetUpEvent::Output { subject, line } => {
                self.status = format!("{subject}: {line}");
                Vec::new()
            }
            SetUpEvent::Finished { subject, failed: None } => vec![lasting_line(format!("{subject}: done"))],
            SetUpEvent::Finished { subject, failed: Some(reason) } => {
                vec![lasting_line(format!("{subject}: not set up: {reason}"))]
            }
            SetUpEvent::Detail(text) => vec![lasting_line(format!("  {text}"))],
            SetUpEvent::Warned(message) => vec![lasting_line(format!("warning: {message}"))],
        }
    }

    fn take_sample(&mut self, label: &str, workload: &str, is_warmup: bool, estimate: Option<&str>) {
        self.done += 1;
        let warm_up = if is_warmup { ", warming up" } else { "" };
        let shown = estimate.map_or(String::new(), |estimate| format!("  {estimate}"));
        self.status = format!("{}  {label}: {workload}{warm_up}{shown}", self.block);
        let (_, estimates) = self.workload.get_or_insert_with(|| (workload.into(), BTreeMap::new()));
        estimates.extend(estimate.map(|estimate| (label.to_string(), estimate.to_string())));
    }

    /// The text of the live bar: `━━━━────  31/36  3 min left  block 1/5  NAME: decode  43.1 tok/s`. Before the
    /// first block, the status alone.
    fn bar_text(&self, elapsed: Option<Duration>) -> String {
        let Some(elapsed) = elapsed.filter(|_| self.requests > 0) else { return self.status.clone() };
        let full = (BAR_WIDTH as u64 * self.done / self.requests).min(BAR_WIDTH as u64) as usize;
        let bar = format!("{}{}", "━".repeat(full), "─".repeat(BAR_WIDTH - full));
        let left =
            self.time_left(elapsed).map_or(String::new(), |left| format!("{} left  ", rounded_time(left)));
        format!("{bar}  {}/{}  {left}{}", self.done, self.requests, self.status)
    }

    /// The time left. All blocks have the same requests, so the average time of the finished requests applies to the
    /// remaining ones.
    fn time_left(&self, elapsed: Duration) -> Option<Duration> {
        let left = self.requests.saturating_sub(self.done);
        (left > 0 && self.done >= MIN_REQUESTS_FOR_TIME_LEFT)
            .then(|| elapsed.mul_f64(left as f64 / self.done as f64))
    }
}

fn step_line(text: String) -> Line {
    Line { text, is_lasting: false }
}

fn lasting_line(text: String) -> Line {
    Line { text, is_lasting: true }
}

fn failure_text(failure: &Failure) -> String {
    let Failure { kind, when, message, .. } = failure;
    match kind {
        FailureKind::Unavailable => format!("{kind}: {message}"),
        _ => format!("{kind} at {when}: {message}"),
    }
}

/// `42 s`, `3 min`, `1 h 20 min`: rounded, because it is an estimate.
fn rounded_time(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..=99 => format!("{} s", seconds.max(1)),
        100..=5999 => format!("{} min", (seconds + 30) / 60),
        _ => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::specimen::timed::{measured, selection};

    /// An event, with the estimate of a sample.
    type Estimated = (Event, Option<&'static str>);

    fn sampled(workload: &str, estimate: &'static str) -> Estimated {
        let (label, workload) = ("beacon".into(), workload.into());
        (Event::Sampled { label, workload, warmup: false, launch: 0, case: 0 }, Some(estimate))
    }

    fn plain_lines(state: &mut State, events: &[Estimated]) -> Vec<String> {
        let lines = events.iter().flat_map(|(event, estimate)| state.take(event, *estimate));
        lines.map(|line| line.text).collect()
    }

    fn run_events() -> Vec<Estimated> {
        let label = || "beacon".to_string();
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
            without_estimate(Event::SetUp(SetUpEvent::Finished { subject: label(), failed: None })),
            without_estimate(Event::RunStarted {
                configurations: 1,
                blocks: Some(3),
                record: "r.jsonl".into(),
            }),
            without_estimate(Event::BlockStarted { block: 0, until: 3, requests: 9 }),
            without_estimate(Event::LaunchStarted { label: label() }),
            without_estimate(Event::Loading { label: label(), phase: "weights".into(), fraction: Some(0.4) }),
            without_estimate(Event::Loaded { label: label(), load_ns: 1_534_000_000 }),
            without_estimate(case("ttft 16")),
            sampled("ttft 16", "9.00 ms"),
            sampled("ttft 16", "8.90 ms"),
            without_estimate(case("decode")),
            sampled("decode", "43.1 tok/s"),
            without_estimate(Event::RunFinished { record: Some("r.jsonl".into()) }),
        ]
    }

    #[test]
    fn a_log_has_one_line_for_each_step_and_none_for_a_sample() {
        assert_eq!(
            plain_lines(&mut State::default(), &run_events()),
            [
                "beacon: building (10 minutes)",
                "beacon: done",
                "measuring: configurations: 1; blocks: 3",
                "record: r.jsonl",
                "block 1/3",
                "  beacon",
                "  loaded in 1.53 s",
                "  ttft 16: beacon 8.90 ms",
                "  decode: beacon 43.1 tok/s",
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
                for line in plain_lines(&mut State::default(), &[(started, None)]) {
                    assert!(text::width(&line) <= WIDTH, "{line}");
                }
            }
        }
    }

    #[test]
    fn the_status_has_the_current_step_and_estimate() {
        let mut state = State::default();
        let events = run_events();
        let (until_loading, until_last_sample) = events[..events.len() - 1].split_at(7);
        plain_lines(&mut state, until_loading);
        assert_eq!(state.status, "block 1/3 beacon: loading, weights 40 %");
        plain_lines(&mut state, until_last_sample);
        assert_eq!(state.status, "block 1/3 beacon: decode 43.1 tok/s");
        assert_eq!(
            state.bar_text(Some(Duration::from_secs(1))),
            "━━━━━━──────────────  3/9  block 1/3 beacon: decode 43.1 tok/s"
        );
    }

    #[test]
    fn time_left_is_computed_from_finished_and_planned_requests() {
        let mut state = State { requests: 20, done: 3, ..State::default() };
        assert_eq!(state.time_left(Duration::from_secs(10)), None);
        state.done = 5;
        assert_eq!(state.time_left(Duration::from_secs(10)), Some(Duration::from_secs(30)));
        state.take(&Event::BlockStarted { block: 1, until: 2, requests: 10 }, None);
        assert_eq!(state.time_left(Duration::from_secs(10)), Some(Duration::from_secs(10)));
        state.take(&Event::BlockStarted { block: 1, until: 2, requests: 5 }, None);
        assert_eq!(state.time_left(Duration::from_secs(10)), None);
        assert_eq!(
            [9, 119, 4800, 6000].map(|s| rounded_time(Duration::from_secs(s))),
            ["9 s", "2 min", "80 min", "1 h 40 min"]
        );
    }

    #[test]
    fn a_failure_stays_on_the_screen_without_control_characters() {
        let failure = Failure {
            kind: crate::record::FailureKind::Exited,
            when: "sample 17".into(),
            message: "\u{1b}[2Jkilled by\nsignal 9".into(),
            ..Failure::default()
        };
        let lines = State::default().take(&Event::Failed { label: "x".into(), failure }, None);
        assert_eq!(lines, [lasting_line("x: exited at sample 17: killed by signal 9".into())]);
    }

    #[test]
    fn the_estimate_of_a_sample_is_the_headline_of_its_launch_so_far() {
        let record = measured(&selection(&["a"], &["decode"]), 1, |_| Some(2.0));
        let (event, _) = sampled("decode", "");
        assert_eq!(estimate(&event, &record).as_deref(), Some("500 tok/s"));
        assert_eq!(estimate(&Event::Interrupted, &record), None);
    }

    #[test]
    fn quiet_displays_show_only_problems_and_details_need_verbose() {
        let detail = || Event::Detail("x".into());
        let failed = || Event::Failed { label: "x".into(), failure: Failure::default() };
        let started = || Event::LaunchStarted { label: "x".into() };
        let shown = |verbosity| [detail(), failed(), started()].map(|event| is_printed(&event, verbosity));
        assert_eq!(shown(Verbosity::Quiet), [false, true, false]);
        assert_eq!(shown(Verbosity::Usual), [false, true, true]);
        assert_eq!(shown(Verbosity::Verbose), [true; 3]);
        assert_eq!(plain_lines(&mut State::default(), &[(detail(), None)]), ["  x"]);
    }

    #[test]
    fn every_display_takes_every_event() {
        for display in [Display::Live, Display::Plain] {
            let mut progress = Progress::new(display);
            for (event, _) in run_events() {
                progress.event_of_run(event, &RunRecord::default());
            }
        }
    }
}
