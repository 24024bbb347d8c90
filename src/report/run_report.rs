//! The report of one run, from its record. Raw samples become results and failures become rows. A row has the facts that
//! the engine reported, and beside them the options that were requested.

use std::time::Duration;

use super::document::TableId;
use super::engines::{mismatches, word};
use super::notes;
use super::outputs::{Output, outputs};
use super::precision::{self, PrecisionImpact};
use super::rows::{Engine, FailedConfiguration, MeasuredWorkload, Row, group_by_key};
use super::run_data::{RunData, begun_blocks, sentence};
use super::settings::{self, SettingImpact};
use super::targets::{self, TargetResult};
use super::verdicts::Verdicts;
use crate::analysis::agreement::{self, NoChecks};
use crate::analysis::claims::{self, Contradiction};
use crate::analysis::metric::limits::{Limit, limits};
use crate::machine::Machine;
use crate::plan::{Mode, Order, budget};
use crate::record::{Overhead, RunRecord};
use crate::text::{line, plural};
use stats::StoppedBy;

/// A report of one run. Every text of the report is one safe line, without control characters and escape sequences; only a hint
/// may have several lines.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// The record's id.
    pub record: String,
    pub started: String,
    /// The time of the whole run after the set-up, where the record has it.
    pub elapsed_ns: Option<u64>,
    pub orchestrate_version: String,
    pub commit: Option<String>,
    pub command: Vec<String>,
    pub machine: Machine,
    /// The models of all rows.
    pub models: Vec<ModelFacts>,
    /// The orchestrator's own cost, where it was measured.
    pub overhead: Option<Overhead>,
    /// The limits of the machine, with the value of each probe.
    pub limits: Vec<Limit>,
    pub mode: Mode,
    pub order: Order,
    /// The number of blocks that began.
    pub begun_blocks: u32,
    /// The number of blocks that the options set.
    pub planned_blocks: Option<u32>,
    /// How far each workload was measured, in the plan's order.
    pub workloads: Vec<MeasuredWorkload>,
    /// The time budget of the whole run, where it has one.
    pub budget_ns: Option<u64>,
    pub has_default_budget: bool,
    /// The budget that the report proposes, where something had too little time.
    pub sufficient_budget: Option<String>,
    pub seed: u64,
    /// The nonce of the prompts. Older records lack it.
    pub nonce: Option<u64>,
    /// The label or the engine name of the reference.
    pub reference: String,
    /// How the run ended if not as planned, and the cases without samples; shown before anything else.
    pub notices: Vec<String>,
    /// The run is not finished yet.
    pub is_running: bool,
    /// All rows, grouped by workload in the plan's order.
    pub rows: Vec<Row>,
    pub failed: Vec<FailedConfiguration>,
    /// The targets of the run file, one for each case that a target names.
    pub targets: Vec<TargetResult>,
    pub verdicts: Verdicts,
    /// The impact of precision, for each row of an engine with several precisions.
    pub precisions: Vec<PrecisionImpact>,
    /// The effect of each setting that varies between the cases of an engine.
    pub settings: Vec<SettingImpact>,
    /// The verification status of each engine that has a row; empty if `no_checks` has a reason.
    pub outputs: Vec<Output>,
    /// The reason why no output was checked.
    pub no_checks: Option<NoChecks>,
    pub warnings: Vec<String>,
    /// The claims of engines that an observation contradicts.
    pub contradictions: Vec<Contradiction>,
    /// Notes about the results, most of which begin with the label of an engine in backticks.
    pub notes: Vec<String>,
}

/// A model as the plan knows it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModelFacts {
    pub name: String,
    pub architecture: Option<String>,
    pub parameters: Option<u64>,
}

/// The optional parts and the order of a report for people. JSON has all parts in every view; the cost of tokens needs a price.
#[derive(Debug, Clone, Default)]
pub struct View {
    /// The full report in place of one screen.
    pub full: bool,
    /// The workload, scenario, metric or column title by which the rows of the one screen are sorted, or `engine`.
    pub sort: Option<String>,
    /// Verdicts on every pair, not only on each engine against its reference.
    pub pairs: bool,
    /// The tables that the user selected.
    pub tables: Vec<TableId>,
    /// The price of an hour of the machine, for a table of the cost of tokens.
    pub price_per_hour: Option<f64>,
    /// Leaves out the notes and the legend of the full report, and the next commands of the one screen.
    pub quiet: bool,
}

impl View {
    pub fn has(&self, table: TableId) -> bool {
        self.tables.contains(&table)
    }
}

impl Report {
    /// The report of a run that is not finished yet.
    pub fn so_far(record: &RunRecord) -> Self {
        let notices = vec![format!("{} so far", plural(begun_blocks(record), "block"))];
        Self { notices, is_running: true, ..Self::of(record) }
    }

    /// The text about the budget of the run, which was too short for this subject.
    pub fn budget_is_too_short_for(&self, subject: &str) -> String {
        let budget = Duration::from_nanos(self.budget_ns.unwrap_or_default());
        budget::too_short_for(subject, budget, self.has_default_budget)
    }

    /// The planned rounds of a workload in each block, if the budget was too short for them in some block.
    pub fn rounds_beyond_budget(&self, workload: &MeasuredWorkload) -> Option<u32> {
        let row = self.rows.iter().find(|row| row.case.label == workload.workload)?;
        let is_fewer = workload.rounds.is_some_and(|(least, _)| least < row.case.rounds as usize);
        (is_fewer && workload.stopped_by == Some(StoppedBy::Time)).then_some(row.case.rounds)
    }

    pub fn of(record: &RunRecord) -> Self {
        let plan = &record.header.plan;
        let data = RunData::of(record);
        let contradictions = claims::contradictions(&data.values, &data.agreements);
        let contradicted =
            |case: usize| claims::is_contradicted(&contradictions, plan.cases[case].configuration);
        let rows: Vec<(usize, Row)> = cases_in_order(&data)
            .filter(|&case| data.values.is_measured(case) || data.failure(case).is_some())
            .map(|case| (case, Row { contradicted: contradicted(case), ..data.row(case) }))
            .collect();
        let outputs = outputs(&data);
        let precisions = precision::impacts(&data, &contradictions);
        let pairs = precisions.iter().map(|it| (it.configuration, it.against));
        let pairs = pairs.filter(|(configuration, widest)| configuration != widest).collect();
        let verdicts = Verdicts::of(&data, &rows, pairs);
        let settings = settings::impacts(&data, &contradictions);
        let notes = notes::of(&data, &rows, &verdicts, &outputs);
        let targets = targets::results(plan, &rows, &outputs);
        let mut machine = record.header.machine.clone();
        machine.cpu.model = machine.cpu.model.as_deref().map(line);
        for gpu in &mut machine.gpus {
            gpu.name = gpu.name.as_deref().map(line);
            gpu.mig_profiles = gpu.mig_profiles.iter().map(|profile| line(profile)).collect();
        }
        let workloads = data.workloads();
        // Older records have the budget only with each workload.
        let of_workloads = || workloads.iter().find_map(|it| it.needs_budget.clone());
        let sufficient_budget = record.needs_budget.as_deref().map(line).or_else(of_workloads);
        Self {
            record: line(&record.header.id),
            started: line(&record.header.started),
            elapsed_ns: record.elapsed_ns,
            models: models(record),
            orchestrate_version: line(&record.header.orchestrate_version),
            commit: record.header.commit.as_deref().map(line),
            command: record.header.command.iter().map(|word| line(word)).collect(),
            machine,
            overhead: record.overhead,
            limits: limits(record),
            mode: plan.mode,
            order: plan.order,
            begun_blocks: begun_blocks(record),
            planned_blocks: plan.extent.blocks,
            workloads,
            budget_ns: plan.extent.budget_ns,
            has_default_budget: plan.extent.has_default_budget,
            sufficient_budget,
            seed: plan.seed,
            nonce: plan.nonce,
            reference: line(plan.reference_label()),
            notices: data.notices(),
            is_running: false,
            rows: rows.into_iter().map(|(_, row)| row).collect(),
            failed: data.failed(),
            targets,
            verdicts,
            precisions,
            settings,
            outputs,
            no_checks: agreement::no_checks(record),
            warnings: data.warnings(mismatches(record, &data.engines), &contradictions),
            contradictions: contradictions.into_iter().map(clean_contradiction).collect(),
            notes,
        }
    }

    /// The engines of all rows and of all configurations that failed.
    pub fn engines(&self) -> impl Iterator<Item = &Engine> {
        let rows = self.rows.iter().map(|row| &row.engine);
        rows.chain(self.failed.iter().map(|failed| &failed.engine))
    }

    /// The warnings for people. Equal warnings about several engines share a line that names these engines. `short` gives the
    /// short form of a label.
    /// `None` for an engine whose warnings are left out.
    pub fn warning_lines(&self, short: impl Fn(&str) -> Option<String>) -> Vec<String> {
        let of_engine = |warning: &String| {
            let rest =
                |engine: &Engine| warning.strip_prefix(&engine.label).filter(|it| it.starts_with(": "));
            let about = self.engines().filter_map(|engine| Some((&engine.label, rest(engine)?)));
            match about.max_by_key(|(label, _)| label.len()) {
                Some((label, rest)) => Some((rest.to_string(), Some(short(label)?))),
                None => Some((warning.clone(), None)),
            }
        };
        let groups = group_by_key(self.warnings.iter().filter_map(of_engine)).into_iter();
        groups
            .map(|(text, names)| names.into_iter().flatten().collect::<Vec<_>>().join(", ") + &text)
            .collect()
    }

    pub fn output_of(&self, row: &Row) -> Option<&Output> {
        self.outputs.iter().find(|it| it.engine == row.engine.label)
    }

    pub fn is_wrong(&self, row: &Row) -> bool {
        self.output_of(row).is_some_and(|it| it.agreement.is_wrong())
    }

    /// Whether the output of a row was not checked, or could not be.
    pub fn is_unverified(&self, row: &Row) -> bool {
        self.no_checks.is_some() || self.output_of(row).is_some_and(Output::is_unverified)
    }
}

fn models(record: &RunRecord) -> Vec<ModelFacts> {
    let plan = &record.header.plan;
    let mut models: Vec<ModelFacts> = Vec::new();
    for model in plan.row_indices().map(|index| &plan.configurations[index].model) {
        let facts = ModelFacts {
            name: line(&model.name),
            architecture: model.architecture.as_deref().map(line),
            parameters: model.sizes.map(|sizes| sizes.parameters),
        };
        if !models.contains(&facts) {
            models.push(facts);
        }
    }
    models
}

/// Cleans the text of an engine's claims: an engine may send anything.
fn clean_contradiction(contradiction: Contradiction) -> Contradiction {
    let (label, reported, observed) =
        (line(&contradiction.label), word(&contradiction.reported), word(&contradiction.observed));
    Contradiction { label, reported, observed, message: sentence(&contradiction.message), ..contradiction }
}

/// The cases in the table's order: by workload, as the plan first names it, then by configuration.
fn cases_in_order(data: &RunData) -> impl Iterator<Item = usize> {
    let rows = data.plan.cases.iter().enumerate().filter(|(_, case)| data.is_row(case.configuration));
    let groups = group_by_key(rows.map(|(index, case)| (&case.workload.label, (case.configuration, index))));
    groups.into_iter().flat_map(|(_, mut cases)| {
        cases.sort_unstable();
        cases.into_iter().map(|(_, index)| index)
    })
}
