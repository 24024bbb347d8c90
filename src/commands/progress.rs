//! The progress of a run on stderr, from its events: a live line on a terminal, otherwise one line for each block.
//!
//! It draws only when an event comes: no thread ticks, so nothing runs while an engine measures.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressFinish, ProgressStyle};

use super::live_table::LiveTable;
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
    /// A line that is redrawn, and the results so far, for a terminal.
    Live,
    /// Lines that stay, for a log: one for each block.
    Log,
    /// Lines that stay, for each step.
    Steps,
}

impl Display {
    pub fn of_stderr() -> Self {
        match (std::io::stderr().is_terminal(), verbosity()) {
            (_, Verbosity::Verbose) => Self::Steps,
            (true, Verbosity::Usual) => Self::Live,
            _ => Self::Log,
        }
    }
}

/// Makes the report of a run that is not finished yet.
pub type ReportSoFar<'a> = Box<dyn Fn(&RunRecord) -> Option<String> + 'a>;

pub struct Progress<'a> {
    state: State,
    display: Display,
    bar: Option<ProgressBar>,
    table: LiveTable,
    report: Option<ReportSoFar<'a>>,
    run_started: Option<Instant>,
    first_block_started: Option<Instant>,
    last_shown: Option<Instant>,
}

/// The minimum time between two redraws. Thousands of samples may come in a second.
const MIN_REDRAW_INTERVAL: Duration = Duration::from_millis(100);
const DRAWS_PER_SECOND: u8 = 10;
/// The minimum time between two lines of a build in a log.
const MIN_SET_UP_INTERVAL: Duration = Duration::from_secs(5);
const BAR_WIDTH: usize = 10;
/// The minimum number of finished requests for an estimate of the time left.
const MIN_REQUESTS_FOR_TIME_LEFT: u64 = 4;

impl<'a> Progress<'a> {
    pub fn new(display: Display) -> Self {
        let bar = (display == Display::Live).then(|| {
            let target = ProgressDrawTarget::stderr_with_hz(DRAWS_PER_SECOND);
            ProgressBar::with_draw_target(None, target)
                .with_style(style())
                .with_finish(ProgressFinish::AndClear)
        });
        Self {
            state: State::default(),
            display,
            bar,
            table: LiveTable::default(),
            report: None,
            run_started: None,
            first_block_started: None,
            last_shown: None,
        }
    }

    /// Shows this report on a terminal after each block.
    pub fn show_after_blocks(&mut self, report: ReportSoFar<'a>) {
        self.report = Some(report);
    }

    /// Takes an event before there is a record.
    pub fn event(&mut self, event: Event) {
        self.show(event, Described::default());
    }

    pub fn event_of_run(&mut self, event: Event, record: &RunRecord) {
        if let Event::RunStarted { .. } = event {
            self.run_started = Some(Instant::now());
            self.state.budget = record.header.plan.extent.budget();
            self.state.budget_is_limit = record.header.plan.extent.set_budget().is_some();
        }
        if let Event::BlockStarted { .. } = event {
            self.first_block_started.get_or_insert_with(Instant::now);
        }
        let described = Described::of(&event, record);
        let is_block_finished = matches!(event, Event::BlockFinished { .. });
        self.show(event, described);
        // No engine runs between two blocks, so drawing the results disturbs no measurement.
        if is_block_finished
            && let Some(bar) = &self.bar
            && let Some(text) = self.report.as_ref().and_then(|report| report(record))
        {
            bar.suspend(|| self.table.replace(&text));
        }
    }

    fn show(&mut self, event: Event, described: Described) {
        let is_sample = matches!(event, Event::Sampled { .. });
        let is_finished = matches!(event, Event::RunFinished { .. });
        let lines = self.state.take(&event, &described);
        if !is_printed(&event, verbosity()) {
            return;
        }
        let clock = self.clock();
        let Some(bar) = &self.bar else {
            for line in lines.iter().filter(|line| line.is_shown_in(self.display)) {
                let done =
                    if line.detail == Detail::Block { self.state.done_text(clock) } else { String::new() };
                print(&format!("{}{done}", line.text));
            }
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
            // The report of the whole run follows.
            self.table.remove();
        }
        for line in lines.iter().filter(|line| line.is_shown_in(self.display)) {
            bar.suspend(|| self.table.print_below(&line.text));
        }
        if is_finished
            || (is_sample && self.last_shown.is_some_and(|shown| shown.elapsed() < MIN_REDRAW_INTERVAL))
        {
            return;
        }
        self.last_shown = Some(Instant::now());
        // Only this call draws.
        bar.set_message(self.state.bar_text(clock, width()));
    }

    fn clock(&self) -> Option<Clock> {
        let measured = self.first_block_started?.elapsed();
        Some(Clock { ran: self.run_started?.elapsed(), measured })
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

/// The columns of the terminal on stderr.
fn width() -> usize {
    super::output::size_of(std::io::stderr()).and_then(|size| size.columns).unwrap_or(WIDTH)
}

/// The time since the start of the run, and since its first block.
#[derive(Debug, Clone, Copy)]
struct Clock {
    ran: Duration,
    measured: Duration,
}

/// The facts of an event that the record has.
#[derive(Debug, Clone, Default)]
struct Described {
    /// The dtype of the engine that the event names.
    dtype: Option<String>,
    /// The headline of a sample's case, over the samples of its launch so far, as the table prints it.
    estimate: Option<String>,
}

impl Described {
    fn of(event: &Event, record: &RunRecord) -> Self {
        let estimate = match *event {
            Event::Sampled { launch, case, .. } => headline_so_far(record, launch, case),
            _ => None,
        };
        let dtype = match event {
            Event::CaseStarted { label, .. } | Event::Sampled { label, .. } => dtype_of(record, label),
            _ => None,
        };
        Self { dtype, estimate: estimate.map(|(metric, value)| metric.unit.show(value)) }
    }
}

/// The dtype that an engine reported when it loaded, or else the requested one.
fn dtype_of(record: &RunRecord, label: &str) -> Option<String> {
    let configurations = &record.header.plan.configurations;
    let index = configurations.iter().position(|it| it.label == label)?;
    let reported =
        record.launches_of(index).last().and_then(|it| it.loaded.as_ref()?.facts.weights_dtype.clone());
    reported.or_else(|| configurations[index].dtype.clone())
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
    /// The time budget of the run.
    budget: Option<Duration>,
    /// The user set the budget.
    budget_is_limit: bool,
    /// The requests of the blocks planned so far, and those of them that are done; both include warm-ups.
    requests: u64,
    done: u64,
    /// The requests up to the end of the current block.
    requests_until_block_end: u64,
    /// The text about the block, which begins the status.
    block: String,
    /// The current step.
    status: String,
    /// Details of the current step, for a wide terminal; the last one is the first to be left out.
    details: Vec<String>,
}

/// The displays that show a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Detail {
    /// All displays: it stays above a live line too.
    Lasting,
    /// The lines of a log: one for each block.
    Block,
    /// Only the log of all steps.
    Step,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Line {
    text: String,
    detail: Detail,
}

impl Line {
    fn new(detail: Detail, text: String) -> Self {
        Self { text, detail }
    }

    fn is_shown_in(&self, display: Display) -> bool {
        match self.detail {
            Detail::Lasting => true,
            Detail::Block => display != Display::Live,
            Detail::Step => display == Display::Steps,
        }
    }

    /// The line without control characters, with its indent.
    fn safe(self) -> Self {
        let indent = self.text.len() - self.text.trim_start().len();
        let text = format!("{}{}", &"  "[..indent.min(2)], text::line(&self.text));
        Self { text, ..self }
    }
}

impl State {
    /// Takes an event, and returns its lines.
    fn take(&mut self, event: &Event, described: &Described) -> Vec<Line> {
        let mut lines = Vec::new();
        let mut add = |detail, text: String| lines.push(Line::new(detail, text));
        if !matches!(event, Event::Warned(_) | Event::Failed { .. } | Event::Detail(_)) {
            self.details.clear();
        }
        match event {
            Event::SetUp(event) => return self.take_set_up(event).into_iter().map(Line::safe).collect(),
            Event::RunStarted { configurations, blocks, record } => {
                let blocks = match blocks {
                    Some(blocks) => text::plural(*blocks, "block"),
                    None => "as many blocks as needed".into(),
                };
                let configurations = text::plural(*configurations, "configuration");
                add(Detail::Block, format!("measuring {configurations} in {blocks}"));
                add(Detail::Block, format!("record: {record}"));
            }
            Event::BlockStarted { block, until, requests } => {
                self.requests = *requests;
                let in_a_block =
                    requests.saturating_sub(self.done) / u64::from(until.saturating_sub(*block).max(1));
                self.requests_until_block_end = self.done + in_a_block;
                self.block = format!("block {} of {until}", block + 1);
                self.status = self.block.clone();
                add(Detail::Block, self.block.clone());
            }
            Event::BlockFinished { block } => self.status = format!("block {} is complete", block + 1),
            Event::LaunchStarted { label } => {
                self.status = format!("{} · starting {label}", self.block);
                add(Detail::Step, format!("  {label}: starting"));
            }
            Event::Loading { label, phase, fraction } => {
                let percent =
                    fraction.map_or(String::new(), |fraction| format!(" {:.0} %", fraction * 100.0));
                self.status = self.in_block(&format!("loading {label}: {phase}{percent}"));
            }
            Event::Loaded { label, load_ns } => {
                let time = Unit::Nanoseconds.show(*load_ns as f64);
                self.status = self.in_block(&format!("{label} loaded in {time}"));
                add(Detail::Step, format!("  {label}: loaded in {time}"));
            }
            Event::CheckingOutput { label, number, of } => {
                self.status = format!("output check {number} of {of} · {label}");
                let detail = if *number == 1 { Detail::Block } else { Detail::Step };
                add(detail, format!("output checks of {}", text::plural(*of, "engine")));
            }
            Event::CheckingTokens { label, samples } => {
                let samples = text::plural(*samples, "sample");
                self.status = format!("checking the tokens of {samples} with {label}");
                add(Detail::Block, self.status.clone());
            }
            Event::CaseStarted { label, workload } => {
                self.show_request(label, workload, described);
                self.details.insert(1, ", warm-up".into());
                add(Detail::Step, format!("  {workload}: {label}"));
            }
            Event::Sampled { label, workload, warmup, .. } => {
                self.done += 1;
                self.show_request(label, workload, described);
                if *warmup {
                    self.details.insert(1, ", warm-up".into());
                } else if let Some(estimate) = &described.estimate {
                    add(Detail::Step, format!("  {workload}: {label} {estimate}"));
                }
            }
            Event::Failed { label, failure } => {
                add(Detail::Lasting, format!("{label}: {}", failure_text(failure)));
            }
            Event::Warned(warning) => add(Detail::Lasting, format!("warning: {}", warning.message)),
            Event::Interrupted => {
                self.status = "interrupted".into();
                add(
                    Detail::Lasting,
                    "interrupted: ending the engines and saving the results; press Ctrl-C again to stop at once".into(),
                );
            }
            Event::Detail(text) => add(Detail::Lasting, format!("  {text}")),
            Event::RunFinished { record: Some(record) } => {
                add(Detail::Lasting, format!("recorded in {record}"))
            }
            Event::RunFinished { record: None } => {
                let why = "every engine refused what the command line selects";
                add(Detail::Lasting, format!("no record: {why}"));
            }
        }
        // These texts contain names and output of other programs.
        self.status = text::line(&self.status);
        lines.into_iter().map(Line::safe).collect()
    }

    /// The status of a request: `block 2 of 5 · decode · ENGINE`, with details.
    fn show_request(&mut self, label: &str, workload: &str, described: &Described) {
        self.status = format!("{} · {workload} · {label}", self.block);
        let dtype = described.dtype.as_ref().map(|dtype| format!(" ({})", text::line(dtype)));
        let estimate = described.estimate.as_ref().map(|estimate| format!("  {estimate}"));
        self.details = vec![dtype.unwrap_or_default(), estimate.unwrap_or_default()];
    }

    /// The text of a step in the current block, or before the first block.
    fn in_block(&self, step: &str) -> String {
        if self.block.is_empty() { step.into() } else { format!("{} · {step}", self.block) }
    }

    fn take_set_up(&mut self, event: &SetUpEvent) -> Vec<Line> {
        let lasting = |text: String| Line::new(Detail::Lasting, text);
        let lines = match event {
            SetUpEvent::Started { subject, step, note } => {
                self.status = format!("{subject}: {step}");
                let note = note.as_ref().map_or(String::new(), |note| format!(" ({note})"));
                let text = text::break_lines(&format!("{}{note}", self.status), WIDTH);
                text.lines().map(|line| lasting(line.into())).collect()
            }
            SetUpEvent::Output { subject, line } => {
                self.status = format!("{subject}: {line}");
                Vec::new()
            }
            SetUpEvent::Waiting { subject, reason } => {
                self.status = format!("{subject}: waiting: {reason}");
                vec![lasting(self.status.clone())]
            }
            SetUpEvent::Finished { subject, failed: None } => vec![lasting(format!("{subject}: done"))],
            SetUpEvent::Finished { subject, failed: Some(reason) } => {
                vec![lasting(format!("{subject}: not set up: {reason}"))]
            }
            SetUpEvent::Detail(text) => vec![lasting(format!("  {text}"))],
            SetUpEvent::Warned(message) => vec![lasting(format!("warning: {message}"))],
        };
        self.status = text::line(&self.status);
        lines
    }

    /// The text of the live line: `━━━━──────  40 %  1 min left  block 2 of 5 · decode · ENGINE (bf16)`. Details that do not fit into
    /// the width are left out. Before the first block, the status alone.
    fn bar_text(&self, clock: Option<Clock>, width: usize) -> String {
        let begin = match clock.and_then(|clock| self.share_and_time_left(clock)) {
            Some((share, left)) => {
                let full = ((BAR_WIDTH as f64 * share) as usize).min(BAR_WIDTH);
                let bar = format!("{}{}", "━".repeat(full), "─".repeat(BAR_WIDTH - full));
                format!("{bar}  {:.0} %  {} left  ", 100.0 * share, rounded_time(left))
            }
            None => String::new(),
        };
        let with_details = |count: usize| format!("{begin}{}{}", self.status, self.details[..count].concat());
        let texts = (0..=self.details.len()).rev().map(with_details);
        texts
            .into_iter()
            .find(|text| text::width(text) <= width)
            .unwrap_or_else(|| text::shorten(&with_details(0), width))
    }

    /// The end of a log's line about a block.
    fn done_text(&self, clock: Option<Clock>) -> String {
        let known = clock.and_then(|clock| self.share_and_time_left(clock));
        known.map_or(String::new(), |(share, left)| {
            format!(" ({:.0} % done, about {} left)", 100.0 * share, rounded_time(left))
        })
    }

    /// The share of the run that is done, and the time left: that of the planned requests, but at most the rest of the budget.
    /// The default budget ends no block, so the rest of the block counts too.
    fn share_and_time_left(&self, clock: Clock) -> Option<(f64, Duration)> {
        // The average time of the finished requests applies to the remaining ones.
        let time_until = |requests: u64| {
            let left = requests.saturating_sub(self.done);
            let is_known = left > 0 && self.done >= MIN_REQUESTS_FOR_TIME_LEFT;
            is_known.then(|| clock.measured.mul_f64(left as f64 / self.done as f64))
        };
        let of_block = time_until(self.requests_until_block_end).filter(|_| !self.budget_is_limit);
        let of_budget = self.budget.map(|budget| budget.saturating_sub(clock.ran));
        let of_budget = of_budget.map(|left| left.max(of_block.unwrap_or_default()));
        let left = time_until(self.requests).into_iter().chain(of_budget).min()?;
        Some((clock.ran.as_secs_f64() / (clock.ran + left).as_secs_f64(), left))
    }
}

fn failure_text(failure: &Failure) -> String {
    let Failure { kind, when, message, .. } = failure;
    match kind {
        FailureKind::NoTime => message.clone(),
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

    fn take(state: &mut State, (event, estimate): &Estimated) -> Vec<Line> {
        let dtype = matches!(event, Event::Sampled { .. }).then(|| "bf16".into());
        state.take(event, &Described { dtype, estimate: estimate.map(String::from) })
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
                "measuring 1 configuration in 3 blocks",
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
            "  beacon: starting",
            "  beacon: loaded in 1.53 s",
            "  ttft 128: beacon",
            "  ttft 128: beacon 9.00 ms",
            "  ttft 128: beacon 8.90 ms",
            "  decode: beacon",
            "  decode: beacon 43.1 tok/s",
        ];
        assert!(lines.windows(steps.len()).any(|window| window == steps), "{lines:?}");
    }

    #[test]
    fn a_terminal_keeps_only_lines_about_set_up_and_problems() {
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

    fn seconds(ran: u64, measured: u64) -> Option<Clock> {
        Some(Clock { ran: Duration::from_secs(ran), measured: Duration::from_secs(measured) })
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
        assert_eq!(live_line(&state), "block 1 of 3 · decode · beacon (bf16)  43.1 tok/s");
        // Three of nine requests are too few for an estimate. The budget bounds the time left.
        (state.budget, state.done) = (Some(Duration::from_secs(180)), 6);
        assert_eq!(
            state.bar_text(seconds(90, 80), WIDTH),
            "━━━━━━────  69 %  40 s left  block 1 of 3 · decode · beacon (bf16)  43.1 tok/s"
        );
        assert_eq!(
            state.bar_text(seconds(170, 160), WIDTH),
            "━━━━━━━━━─  94 %  10 s left  block 1 of 3 · decode · beacon (bf16)  43.1 tok/s"
        );
        assert_eq!(state.done_text(seconds(90, 80)), " (69 % done, about 40 s left)");
    }

    #[test]
    fn the_live_line_fits_into_the_terminal() {
        let mut state = State { requests: 2000, done: 20, ..State::default() };
        take(&mut state, &(Event::BlockStarted { block: 11, until: 20, requests: 2000 }, None));
        let (label, workload) = ("patient-original (twin)".into(), "ttft 512".into());
        let sample = Event::Sampled { label, workload, warmup: false, launch: 0, case: 0 };
        take(&mut state, &(sample, Some("43.1 tok/s")));
        let shown = |width| state.bar_text(seconds(100, 60), width);
        let (wide, narrow) = (shown(200), shown(80));
        assert!(
            wide.ends_with("block 12 of 20 · ttft 512 · patient-original (twin) (bf16)  43.1 tok/s"),
            "{wide}"
        );
        assert!(
            text::width(&narrow) <= 80 && narrow.contains("block 12 of 20 · ttft 512 · patient"),
            "{narrow}"
        );
    }

    #[test]
    fn time_left_is_computed_from_requests_and_from_the_budget() {
        let mut state = State { requests: 20, done: 3, ..State::default() };
        let left = |state: &State, clock| Some(state.share_and_time_left(clock?)?.1.as_secs());
        assert_eq!(left(&state, seconds(10, 10)), None);
        state.done = 5;
        assert_eq!(left(&state, seconds(20, 10)), Some(30));
        take(&mut state, &(Event::BlockStarted { block: 1, until: 2, requests: 10 }, None));
        assert_eq!(left(&state, seconds(20, 10)), Some(10));
        (state.budget, state.budget_is_limit) = (Some(Duration::from_secs(25)), true);
        assert_eq!(left(&state, seconds(20, 10)), Some(5));
        assert_eq!(left(&state, seconds(30, 10)), Some(0));
        // The block may take longer than the default budget, and no block follows it.
        take(&mut state, &(Event::BlockStarted { block: 0, until: 5, requests: 55 }, None));
        state.budget_is_limit = false;
        assert_eq!([seconds(20, 10), seconds(30, 10)].map(|clock| left(&state, clock)), [Some(20); 2]);
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
        assert_eq!(Described::of(&event, &record).estimate.as_deref(), Some("500 tok/s"));
        assert_eq!(Described::of(&Event::Interrupted, &record).estimate, None);
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
    }

    #[test]
    fn every_display_takes_every_event() {
        for display in [Display::Live, Display::Log, Display::Steps] {
            let mut progress = Progress::new(display);
            progress.show_after_blocks(Box::new(|_| Some("a table".into())));
            for (event, _) in run_events() {
                progress.event_of_run(event, &RunRecord::default());
            }
        }
    }
}
