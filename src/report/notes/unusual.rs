//! Rows of unusual prompts whose requests take much longer than those of the engine's other prompts, with the likely reason.

use crate::analysis::metric::MetricId;
use crate::plan::axes::Shape;
use crate::plan::texts::{Length, TextKind};
use crate::plan::{Prompt, Workload};
use crate::report::rows::{Row, group_by_key};
use crate::report::run_data::RunData;
use crate::text::{plural, three_digits, with_commas};
use stats::median;

/// A request that takes this many times the median of its scenario is slow.
const SLOW_FACTOR: f64 = 2.0;

/// The times of a row in nanoseconds: a request, its first token, and the next tokens together.
struct Times {
    total: f64,
    first: f64,
    next: f64,
    prompt_tokens: f64,
}

/// A note for each row that is slow among the rows of its engine and scenario that differ only in the kind of text.
pub fn slow(data: &RunData, rows: &[(usize, Row)]) -> Vec<String> {
    let with_times = rows.iter().filter_map(|(case, row)| {
        let workload = &data.plan.cases[*case].workload;
        let others = Shape { text: TextKind::default(), ..workload.shape };
        let key = (row.engine.label.clone(), row.case.scenario.clone(), workload.max_new_tokens, others);
        Some((key, (row, workload, Times::of(row, workload)?)))
    });
    let groups = group_by_key(with_times);
    groups.iter().flat_map(|(_, rows)| slow_of(rows)).collect()
}

fn slow_of(rows: &[(&Row, &Workload, Times)]) -> Vec<String> {
    let kinds = distinct(rows.iter().map(|(_, workload, _)| workload.shape.text)).len();
    // If the prompts have several lengths, a longer time may come from the length, so no row has a note.
    let is_of_axis = |workload: &Workload| workload.shape.text.length() == Length::OfAxis;
    let of_axis = rows.iter().filter(|(_, workload, _)| is_of_axis(workload));
    let lengths = distinct(of_axis.map(|(_, workload, _)| &workload.prompt)).len();
    let middle = |of: fn(&Times) -> f64| median(&rows.iter().map(|(.., it)| of(it)).collect::<Vec<_>>());
    let usual = || {
        Some(Times {
            total: middle(|it| it.total)?,
            first: middle(|it| it.first)?,
            next: middle(|it| it.next)?,
            prompt_tokens: middle(|it| it.prompt_tokens)?,
        })
    };
    let Some(usual) = usual().filter(|_| kinds > 2 && lengths < 2) else { return Vec::new() };
    let slow = rows.iter().filter(|(.., it)| it.total > SLOW_FACTOR * usual.total);
    let note = |(row, _, times): &(&Row, &Workload, Times)| {
        let (factor, why) = (three_digits(times.total / usual.total), times.reason(&usual));
        format!(
            "`{}` `{}`: a request takes {factor} times the median of the scenario; likely reason: {why}",
            row.engine.label, row.case.label
        )
    };
    slow.map(note).collect()
}

fn distinct<T: PartialEq>(values: impl Iterator<Item = T>) -> Vec<T> {
    group_by_key(values.map(|it| (it, ()))).into_iter().map(|(value, _)| value).collect()
}

impl Times {
    fn of(row: &Row, workload: &Workload) -> Option<Self> {
        let estimate = |id| row.summary(id).map(|it| it.estimate);
        let (total, first) = (estimate(MetricId::TOTAL)?, estimate(MetricId::FIRST_TOKEN)?);
        let Prompt::Tokens(tokens) = workload.prompt else { return None };
        let steps = f64::from(workload.max_new_tokens.saturating_sub(1));
        // With drafts a step makes several tokens, so there is no inter-token latency.
        let next = match estimate(MetricId::INTER_TOKEN) {
            None if !workload.shape.speculation.is_off() => total - first,
            between => between.unwrap_or(0.0) * steps,
        };
        (row.failure.is_none()).then_some(Self { total, first, next, prompt_tokens: f64::from(tokens) })
    }

    fn reason(&self, usual: &Self) -> String {
        let (first, next) = (self.first - usual.first, self.next - usual.next);
        let tokens = plural(with_commas(self.prompt_tokens), "prompt token");
        let share = three_digits(100.0 * self.first / self.total);
        let is_long = self.prompt_tokens > SLOW_FACTOR * usual.prompt_tokens;
        let other = self.total - usual.total - first - next;
        match (first.max(next) > other, first > next, is_long) {
            (false, ..) => {
                "time outside prefill and decode, such as tokenization or the transfer of the request".into()
            }
            (_, true, true) => format!("a long prefill: {tokens}, {share} % of the time"),
            (_, true, false) => {
                format!("a slow first token after a prompt of the usual length, {share} % of the time")
            }
            (_, false, true) => format!("slow decode steps after {tokens}"),
            (_, false, false) => "slow decode steps".into(),
        }
    }
}
