//! The progress of a run on stderr, from its events: a live line on a terminal, otherwise lines for a log.
//!
//! It draws only when an event comes. It has no timer, so it takes no CPU time while an engine computes.

mod lines;
mod live_table;

use std::collections::BTreeSet;
use std::io::Write;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressFinish, ProgressStyle};

use crate::cli::{Verbosity, verbosity};
use crate::commands::output::{WIDTH, has_one_stream, is_terminal, size_of, with_this_program};
use crate::engines::setup::SetUpEvent;
use crate::record::RunRecord;
use crate::run::Event;
pub use lines::Display;
use lines::{Clock, EventFacts, ShownIn, State};
use live_table::LiveTable;

/// Makes the report of a run that is not finished yet.
pub type ReportSoFar<'a> = Box<dyn Fn(&RunRecord) -> Option<String> + 'a>;

pub struct Progress<'a> {
    state: State,
    display: Display,
    bar: Option<ProgressBar>,
    table: LiveTable,
    report: Option<ReportSoFar<'a>>,
    /// A report for people follows the run. It has the warnings and failures too.
    is_reported: bool,
    run_started: Option<Instant>,
    first_block_started: Option<Instant>,
    /// The start or the end of a block, whichever was last.
    block_changed: Option<Instant>,
    last_shown: Option<Instant>,
    /// The lines that the report repeats. Each is printed once.
    printed: BTreeSet<String>,
}

/// The minimum time between two redraws, because thousands of samples may come in a second.
const MIN_REDRAW_INTERVAL: Duration = Duration::from_millis(100);
const DRAWS_PER_SECOND: u8 = 10;
/// The minimum time between two lines of a build in a log.
const MIN_SET_UP_INTERVAL: Duration = Duration::from_secs(5);

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
            is_reported: false,
            run_started: None,
            first_block_started: None,
            block_changed: None,
            last_shown: None,
            printed: BTreeSet::new(),
        }
    }

    /// Shows this report on a terminal after each block.
    pub fn show_after_blocks(&mut self, report: ReportSoFar<'a>) {
        self.report = Some(report);
    }

    /// Expects a report for people after the run, which repeats its warnings and failures.
    pub fn expect_report(&mut self) {
        self.is_reported = true;
    }

    /// Takes an event before there is a record.
    pub fn event(&mut self, event: Event) {
        self.show(event, EventFacts::default());
    }

    pub fn event_of_run(&mut self, event: Event, record: &RunRecord) {
        if let Event::RunStarted { .. } = event {
            self.run_started = Some(Instant::now());
            self.state.budget = record.header.plan.extent.budget();
            self.state.budget_is_limit = record.header.plan.extent.set_budget().is_some();
        }
        if let Event::BlockStarted { .. } | Event::BlockFinished { .. } = event {
            let now = Instant::now();
            self.first_block_started.get_or_insert(now);
            self.block_changed = Some(now);
        }
        if let Event::Warned(warning) = &event
            && record.is_repeated_by_twin(warning)
        {
            return;
        }
        let facts = EventFacts::of(&event, record);
        let is_block_finished = matches!(event, Event::BlockFinished { .. });
        self.show(event, facts);
        // No engine runs between two blocks, so drawing the results disturbs no measurement.
        if is_block_finished
            && let Some(bar) = &self.bar
            && let Some(text) = self.report.as_ref().and_then(|report| report(record))
        {
            bar.suspend(|| self.table.replace(&text));
        }
    }

    fn show(&mut self, event: Event, facts: EventFacts) {
        let is_sample = matches!(event, Event::Sampled { .. });
        let is_finished = matches!(event, Event::RunFinished { .. });
        let mut lines = self.state.take(&event, &facts);
        // A report in a file leaves the lines of a terminal as they are.
        let is_reported = self.is_reported && (self.display != Display::Live || is_terminal());
        lines.iter_mut().for_each(|line| line.text = with_this_program(&line.text));
        // A log of stdout and stderr has the report too.
        let is_one_log = || self.display != Display::Live && has_one_stream();
        let is_only_in_report = is_reported && is_one_log();
        lines.retain(|line| {
            let is_in_report = matches!(line.shown_in, ShownIn::UntilReport | ShownIn::BlockUntilReport);
            !is_in_report || !is_only_in_report && self.printed.insert(line.text.clone())
        });
        if !is_printed(&event, verbosity()) {
            return;
        }
        let clock = self.clock();
        let Some(bar) = &self.bar else {
            for line in lines.iter().filter(|line| line.is_shown_in(self.display)) {
                let done =
                    if line.shown_in == ShownIn::Block { self.state.done_text(clock) } else { String::new() };
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
            match line.shown_in {
                ShownIn::UntilReport if is_reported && is_finished => {}
                ShownIn::UntilReport if is_reported => {
                    bar.suspend(|| self.table.print_until_removed(&line.text))
                }
                _ => bar.suspend(|| self.table.print_below(&line.text)),
            }
        }
        if is_finished
            || (is_sample && self.last_shown.is_some_and(|shown| shown.elapsed() < MIN_REDRAW_INTERVAL))
        {
            return;
        }
        self.last_shown = Some(Instant::now());
        // The bar has no timer: only this call and `suspend` draw it.
        bar.set_message(self.state.bar_text(clock, width()));
    }

    fn clock(&self) -> Option<Clock> {
        let (measured, in_block) = (self.first_block_started?.elapsed(), self.block_changed?.elapsed());
        Some(Clock { ran: self.run_started?.elapsed(), measured, in_block })
    }
}

/// Whether a display shows an event. `--quiet` leaves only failures, and details need `--verbose`.
fn is_printed(event: &Event, verbosity: Verbosity) -> bool {
    let is_detail = matches!(event, Event::Detail(_) | Event::SetUp(SetUpEvent::Detail(_)));
    let is_failure = matches!(
        event,
        Event::Failed { .. }
            | Event::Interrupted
            | Event::SetUp(SetUpEvent::Finished { failed: Some(_), .. })
    );
    match verbosity {
        Verbosity::Quiet => is_failure,
        Verbosity::Usual => !is_detail,
        Verbosity::Verbose => true,
    }
}

/// The columns of the terminal on stderr.
fn width() -> usize {
    size_of(std::io::stderr()).and_then(|size| size.columns).unwrap_or(WIDTH)
}

/// The style of the live line, which is cut at the terminal's width. A template that indicatif refuses does not end a run.
fn style() -> ProgressStyle {
    ProgressStyle::with_template("{wide_msg}").unwrap_or_else(|_| ProgressStyle::default_spinner())
}

/// Prints a line. A closed stderr does not end a run.
fn print(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Failure, Warning};

    #[test]
    fn quiet_displays_show_only_failures_and_details_need_verbose() {
        let detail = || Event::Detail("x".into());
        let failed = || Event::Failed { label: "x".into(), failure: Failure::default() };
        let warned = || Event::Warned(Warning::default());
        let started = || Event::LaunchStarted { label: "x".into() };
        let shown =
            |verbosity| [detail(), failed(), warned(), started()].map(|event| is_printed(&event, verbosity));
        assert_eq!(shown(Verbosity::Quiet), [false, true, false, false]);
        assert_eq!(shown(Verbosity::Usual), [false, true, true, true]);
        assert_eq!(shown(Verbosity::Verbose), [true; 4]);
    }

    #[test]
    fn every_display_accepts_all_events_of_a_run() {
        for display in [Display::Live, Display::Log, Display::Steps] {
            let mut progress = Progress::new(display);
            progress.show_after_blocks(Box::new(|_| Some("a table".into())));
            let label = || String::from("beacon");
            for event in [
                Event::SetUp(SetUpEvent::Output { subject: label(), line: "Compiling".into() }),
                Event::RunStarted {
                    configurations: 1,
                    blocks: Some(1),
                    twins: Vec::new(),
                    record: "r.jsonl".into(),
                },
                Event::BlockStarted { block: 0, until: 1, requests: 9 },
                Event::Sampled {
                    label: label(),
                    workload: "decode".into(),
                    warmup: false,
                    launch: 0,
                    case: 0,
                },
                Event::BlockFinished { block: 0 },
                Event::RunFinished { record: Some("r.jsonl".into()) },
            ] {
                progress.event_of_run(event, &RunRecord::default());
            }
        }
    }
}
