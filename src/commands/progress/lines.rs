//! The lines of the progress: each event becomes the text of a step, and lines that stay.

#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::io::IsTerminal;
use std::time::Duration;

use crate::analysis::metric::Unit;
use crate::analysis::values::headline_so_far;
use crate::cli::{Verbosity, verbosity};
use crate::commands::output::WIDTH;
use crate::engines::setup::SetUpEvent;
use crate::record::{Failure, FailureKind, RunRecord, Warning};
use crate::run::Event;
use crate::text;
use stats::{INTERIM_ANALYSES, MIN_VERDICT_BLOCKS};

const BAR_WIDTH: usize = 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Display {
    /// A line that is redrawn, and the results so far, for a terminal.
    Live,
    /// Lines that stay, for a log: blocks, without their steps.
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

/// The time since the start of the run, since its first block, and since the start or the end of a block, whichever was last.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    pub ran: Duration,
    pub measured: Duration,
    pub in_block: Duration,
}

/// Facts that the record adds to an event.
#[derive(Debug, Clone, Default)]
pub struct EventFacts {
    /// The dtype of the engine that the event names.
    pub dtype: Option<String>,
    /// The headline of a sample's case, over the samples of its launch so far, as the table prints it.
    pub estimate: Option<String>,
    /// The name of the configuration that a warning is about.
    pub warned: Option<String>,
}

impl EventFacts {
    pub fn of(event: &Event, record: &RunRecord) -> Self {
        let estimate = match *event {
            Event::Sampled { launch, case, .. } => headline_so_far(record, launch, case),
            _ => None,
        };
        let dtype = match event {
            Event::CaseStarted { label, .. } | Event::Sampled { label, .. } => dtype_of(record, label),
            _ => None,
        };
        let warned = match event {
            Event::Warned(Warning { configuration: Some(configuration), .. }) => {
                Some(record.header.plan.name_in_warnings(*configuration))
            }
            _ => None,
        };
        Self { dtype, estimate: estimate.map(|(metric, value)| metric.unit.show(value)), warned }
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

/// The state of the progress after the events so far. Callers give it the time and the width of the terminal.
#[derive(Debug, Default)]
pub struct State {
    /// The time budget of the run.
    pub budget: Option<Duration>,
    /// Whether the user set the budget.
    pub budget_is_limit: bool,
    /// The number of blocks planned so far, and how many of them are complete.
    planned_blocks: u32,
    complete_blocks: u32,
    /// About as many requests are planned so far, and as many are done.
    planned_requests: u64,
    done_requests: u64,
    /// The largest share of the run that was shown as done.
    shown_share: Cell<f64>,
    /// The text about the block, which begins the status.
    block: String,
    /// The current step.
    pub status: String,
    /// Details of the current step, for a wide terminal; the last one is the first to be left out.
    details: Vec<String>,
}

/// The displays that show a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShownIn {
    /// All displays: it stays above a live line too.
    Lasting,
    /// All displays. The final report has it too, so the live display shows it only until then.
    UntilReport,
    /// Both displays of lines that stay, but not the live one.
    Block,
    /// As `Block`. The final report has it too.
    BlockUntilReport,
    /// Only the log of all steps.
    Step,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    pub text: String,
    pub shown_in: ShownIn,
}

impl Line {
    fn new(shown_in: ShownIn, text: String) -> Self {
        Self { text, shown_in }
    }

    pub fn is_shown_in(&self, display: Display) -> bool {
        match self.shown_in {
            ShownIn::Lasting | ShownIn::UntilReport => true,
            ShownIn::Block | ShownIn::BlockUntilReport => display != Display::Live,
            ShownIn::Step => display == Display::Steps,
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
    pub fn take(&mut self, event: &Event, facts: &EventFacts) -> Vec<Line> {
        let mut lines = Vec::new();
        let mut add = |shown_in, text: String| lines.push(Line::new(shown_in, text));
        if !matches!(event, Event::Warned(_) | Event::Failed { .. } | Event::Detail(_)) {
            self.details.clear();
        }
        match event {
            Event::SetUp(event) => return self.take_set_up(event).into_iter().map(Line::safe).collect(),
            Event::WaitsForRun(problem) => {
                self.status = "waiting for another run".into();
                add(ShownIn::Lasting, format!("waiting: {problem}; --anyway measures without waiting"));
            }
            Event::BudgetTooShort(message) => add(ShownIn::Lasting, format!("warning: {message}")),
            Event::RunStarted { configurations, blocks, twins, record } => {
                let blocks = match blocks {
                    Some(blocks) => text::plural(*blocks, "block"),
                    None => format!(
                        "{MIN_VERDICT_BLOCKS} to {} blocks",
                        INTERIM_ANALYSES[INTERIM_ANALYSES.len() - 1]
                    ),
                };
                let configurations = text::plural(*configurations, "configuration");
                let budget = self.budget.map_or_else(
                    || "no time budget".into(),
                    |budget| format!("time budget {}", text::estimated_time(budget)),
                );
                add(ShownIn::Block, format!("measuring {configurations} in {blocks}; {budget}"));
                let names = twins.join(", ");
                let of_twins = match twins.len() {
                    0 => None,
                    1 => Some(format!(
                        "{names}: a second copy of that engine; the difference between the two is noise"
                    )),
                    _ => Some(format!(
                        "{names}: second copies of these engines; the difference to the first is noise"
                    )),
                };
                of_twins.into_iter().for_each(|text| add(ShownIn::Block, text));
                add(ShownIn::BlockUntilReport, format!("record: {record}"));
            }
            Event::BlockStarted { block, until, requests } => {
                self.planned_requests = *requests;
                (self.planned_blocks, self.complete_blocks) = (*until, *block);
                self.block = format!("block {} of {until}", block + 1);
                self.status = self.block.clone();
                add(ShownIn::Block, self.block.clone());
            }
            Event::BlockFinished { block } => {
                self.complete_blocks = block + 1;
                self.status = format!("block {} is complete", block + 1);
            }
            Event::LaunchStarted { label } => {
                // A detail of the launch follows, with its command.
                self.status = format!("{} · starting {label}", self.block);
            }
            Event::Loading { label, phase, fraction } => {
                let percent =
                    fraction.map_or(String::new(), |fraction| format!(" {:.0} %", fraction * 100.0));
                self.status = self.in_block(&format!("loading {label}: {phase}{percent}"));
            }
            Event::Loaded { label, load_ns } => {
                let time = Unit::Nanoseconds.show(*load_ns as f64);
                self.status = self.in_block(&format!("{label} loaded in {time}"));
                add(ShownIn::Step, format!("  {label}: loaded in {time}"));
            }
            Event::MeasuringDtypes { label, limit } => {
                let limit = limit.as_secs();
                self.status = format!(
                    "measuring what narrow dtypes cost on this model, with {label} (at most {limit} s, once for each model)"
                );
                add(ShownIn::Block, self.status.clone());
            }
            Event::CheckingOutput { label, number, of } => {
                self.status = format!("output check {number} of {of} · {label}");
                if *number == 1 {
                    add(ShownIn::Block, format!("output checks of {}", text::plural(*of, "engine")));
                }
                add(ShownIn::Step, format!("  output check {number} of {of}: {label}"));
            }
            Event::CheckingTokens { label, samples } => {
                let samples = text::plural(*samples, "sample");
                self.status = format!("checking the tokens of {samples} with {label}");
                add(ShownIn::Block, self.status.clone());
            }
            Event::CaseStarted { label, workload } => {
                self.show_request(label, workload, facts);
                self.details.insert(1, ", warm-up".into());
                add(ShownIn::Step, format!("  {workload}: {label}"));
            }
            Event::Sampled { label, workload, warmup, .. } => {
                self.done_requests += 1;
                self.show_request(label, workload, facts);
                if *warmup {
                    self.details.insert(1, ", warm-up".into());
                } else if let Some(estimate) = &facts.estimate {
                    add(ShownIn::Step, format!("  {workload}: {label} {estimate}"));
                }
            }
            Event::Failed { label, failure } => {
                add(ShownIn::UntilReport, format!("{label}: {}", failure_text(failure)));
            }
            Event::Warned(warning) => {
                let name = facts.warned.as_ref().map_or_else(String::new, |name| format!("{name}: "));
                add(ShownIn::UntilReport, format!("warning: {name}{}", warning.message));
            }
            Event::Interrupted => {
                self.status = "interrupted".into();
                add(
                    ShownIn::Lasting,
                    "interrupted: ending the engines and saving the results; press Ctrl-C again to stop at once".into(),
                );
            }
            Event::Detail(text) => add(ShownIn::Lasting, format!("  {text}")),
            Event::RunFinished { record: Some(record) } => {
                add(ShownIn::UntilReport, format!("recorded in {record}"))
            }
            Event::RunFinished { record: None } => {
                let why = "no engine can run what the command line selects";
                add(ShownIn::Lasting, format!("no record: nothing was measured, because {why}"));
            }
        }
        // These texts contain names and output of other programs.
        self.status = text::line(&self.status);
        lines.into_iter().map(Line::safe).collect()
    }

    /// The status of a request: `block 2 of 5 · decode · ENGINE`, with details.
    fn show_request(&mut self, label: &str, workload: &str, facts: &EventFacts) {
        self.status = format!("{} · {workload} · {label}", self.block);
        let dtype = facts.dtype.as_ref().map(|dtype| format!(" ({})", text::line(dtype)));
        let estimate = facts.estimate.as_ref().map(|estimate| format!("  {estimate}"));
        self.details = vec![dtype.unwrap_or_default(), estimate.unwrap_or_default()];
    }

    /// The text of a step in the current block, or before the first block.
    fn in_block(&self, step: &str) -> String {
        if self.block.is_empty() { step.into() } else { format!("{} · {step}", self.block) }
    }

    fn take_set_up(&mut self, event: &SetUpEvent) -> Vec<Line> {
        let lasting = |text: String| Line::new(ShownIn::Lasting, text);
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
            SetUpEvent::Warned(message) => {
                vec![Line::new(ShownIn::UntilReport, format!("warning: {message}"))]
            }
        };
        self.status = text::line(&self.status);
        lines
    }

    /// The live line: `━━━━──────  40 %  1 min left  block 2 of 5 · decode · ENGINE (bf16)`. Details that do not fit into
    /// the width are left out. If the time left is unknown, the line has the number of requests that are done.
    pub fn bar_text(&self, clock: Option<Clock>, width: usize) -> String {
        let begin = match clock.and_then(|clock| self.share_and_time_left(clock)) {
            Some((share, left)) => {
                let full = ((BAR_WIDTH as f64 * share) as usize).min(BAR_WIDTH);
                let bar = format!("{}{}", "━".repeat(full), "─".repeat(BAR_WIDTH - full));
                format!("{bar}  {:.0} %  {} left  ", 100.0 * share, text::estimated_time(left))
            }
            None if self.done_requests > 0 && self.complete_blocks < self.planned_blocks => {
                match self.planned_requests {
                    planned if planned > self.done_requests => {
                        format!("{} of about {}  ", self.done_requests, text::plural(planned, "request"))
                    }
                    // More warm-up requests were made than expected, so the number of all is unknown.
                    _ => format!("{}  ", text::plural(self.done_requests, "request")),
                }
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

    /// The text after a log's line about a block: ` (40 % done, about 2 min left)`. Empty if the time left is unknown.
    pub fn done_text(&self, clock: Option<Clock>) -> String {
        let known = clock.and_then(|clock| self.share_and_time_left(clock));
        known.map_or(String::new(), |(share, left)| {
            let about = if left.as_secs_f64().round() < 1.0 { "" } else { "about " };
            format!(" ({:.0} % done, {about}{} left)", 100.0 * share, text::estimated_time(left))
        })
    }

    /// The share of the run that is done, and the time left: that of the remaining blocks, or the rest of the budget if it is
    /// shorter. The times of requests differ too much between engines for an estimate within the first block, so only the budget
    /// counts there. The default budget ends no block, so the time left is at least that of the current block.
    fn share_and_time_left(&self, clock: Clock) -> Option<(f64, Duration)> {
        let Clock { ran, measured, in_block } = clock;
        let complete = self.complete_blocks;
        let block_time = (complete > 0).then(|| measured.saturating_sub(in_block) / complete);
        let of_block = block_time.map(|time| time.saturating_sub(in_block));
        let remaining = self.planned_blocks.checked_sub(complete + 1)?;
        let of_blocks = block_time.zip(of_block).map(|(time, rest)| rest + time * remaining);
        let at_least = of_block.filter(|_| !self.budget_is_limit).unwrap_or_default();
        let of_budget = self.budget.map(|budget| budget.saturating_sub(ran).max(at_least));
        let left = of_blocks.into_iter().chain(of_budget).min()?;
        let share = ran.as_secs_f64() / (ran + left).as_secs_f64();
        // More blocks may be planned later. The share that is shown never becomes smaller.
        let shown = share.max(self.shown_share.get());
        self.shown_share.set(shown);
        Some((shown, left))
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
