//! The comparisons of a plan, and the configurations that are added to its rows: twins, verifiers and the null engine.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use super::scenario::Kind;
use super::{Case, Configuration, Mode, Model, Order, Plan, Role, Selection, VERIFIER_DTYPE, Workload};
use crate::engines::manifest::DEFAULT_PRESET;
use crate::machine::Device;
use stats::MIN_VERDICT_BLOCKS;

/// The label of the null engine, which is in no table.
const NULL_ENGINE: &str = "null engine";

/// Follows the name of a row in a warning about its twin. A twin is no engine that the user named.
const OF_TWIN: &str = " (its twin, which shows the noise)";

/// A comparison of two presets of one engine, which shows the effect of a preset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ComparedPresets<'a> {
    pub configuration: usize,
    pub against: usize,
    pub effect: &'a str,
}

impl Plan {
    /// Adds a twin of a row, unless the row has one or no verdict is possible.
    pub fn add_twin(&mut self, original: usize) {
        let too_few_blocks = self.extent.blocks.is_some_and(|blocks| blocks < MIN_VERDICT_BLOCKS as u32);
        // A row without measurements has no noise.
        let is_unsupported = self.configurations[original].unsupported;
        if too_few_blocks
            || is_unsupported
            || self.order == Order::Sequential
            || self.twin_of(original).is_some()
        {
            return;
        }
        self.push_twin(original);
    }

    fn push_twin(&mut self, original: usize) {
        let mut twin = self.configurations[original].clone();
        twin.label = format!("{} (twin)", twin.label);
        twin.role = Some(Role::Twin { of: original });
        // A score has no noise.
        let workloads: Vec<Workload> =
            self.workloads_of(original).into_iter().filter(|it| it.kind != Kind::Score).collect();
        if !workloads.is_empty() {
            self.add(twin, &workloads);
        }
    }

    /// Adds a twin for each row, however few the blocks: the run measures noise and gives no verdicts.
    pub fn with_twins_of_all(mut self) -> Self {
        for original in 0..self.configurations.len() {
            if self.configurations[original].role.is_none() && self.twin_of(original).is_none() {
                self.push_twin(original);
            }
        }
        self
    }

    /// Removes all cases: the run only checks outputs.
    pub fn output_checks_only(mut self) -> Self {
        self.cases.clear();
        self
    }

    /// Adds the null engine, with the queries of the rows. A one-shot process gets no query.
    pub(super) fn add_null_engine(&mut self, selection: &Selection) {
        let mut queries: Vec<Workload> = Vec::new();
        for Case { workload, .. } in self.cases.iter().filter(|it| it.workload.kind == Kind::Query) {
            if queries.iter().all(|known| known.label != workload.label) {
                queries.push(workload.clone());
            }
        }
        let first = self.configurations.first().filter(|_| !queries.is_empty() && self.mode == Mode::Warm);
        let Some(first) = first.filter(|_| !selection.null_engine.is_empty()) else { return };
        let null_engine = Configuration {
            label: NULL_ENGINE.into(),
            engine: NULL_ENGINE.into(),
            command: selection.null_engine.clone(),
            model: first.model.clone(),
            device: Device::cpu(),
            threads: 1,
            role: Some(Role::NullEngine),
            ..Configuration::default()
        };
        self.add(null_engine, &queries);
    }

    /// Gives each verifier in a record of version 3 its present name. The word `witness` was the earlier one.
    pub fn rename_earlier_verifiers(&mut self) {
        for verifier in self.configurations.iter_mut().filter(|it| it.role == Some(Role::Verifier)) {
            verifier.label = verifier.label.replace(" (witness)", " (verifier)");
        }
    }

    /// Adds the verifier of a model, unless a row is already the verifier. Of these workloads it gets those that score text.
    pub(super) fn add_verifier(&mut self, selection: &Selection, model: &Model, workloads: &[Workload]) {
        let Some(candidate) = selection.verifier.as_ref().filter(|_| self.verifier_of(model).is_none())
        else {
            return;
        };
        let device = selection.verifier_device();
        let verifier = Configuration {
            label: format!("{} (verifier)", candidate.engine),
            engine: candidate.engine.clone(),
            preset: candidate.preset.clone(),
            options: candidate.options.clone(),
            // The verifier runs on the CPU, even if the user selected other devices for the engines.
            command: candidate.start_for(&device).command.clone(),
            model: model.clone(),
            alone: !device.is_cpu(),
            device,
            dtype: Some(VERIFIER_DTYPE.into()),
            threads: selection.threads.iter().copied().max().unwrap_or(1),
            role: Some(Role::Verifier),
            verifies: true,
            ..Configuration::default()
        };
        let scores: Vec<Workload> = workloads.iter().filter(|it| it.kind == Kind::Score).cloned().collect();
        self.add(verifier, &scores);
    }

    /// All configurations except those that are only used for output checks.
    pub fn measured(&self) -> Vec<usize> {
        let all = self.configurations.iter().enumerate();
        all.filter(|(_, it)| it.role != Some(Role::Verifier)).map(|(index, _)| index).collect()
    }

    /// The configuration of the verifier on a model.
    pub fn verifier_of(&self, model: &Model) -> Option<usize> {
        let can_verify = |it: &Configuration| it.verifies && it.model == *model && it.unavailable.is_none();
        let with_role = |role| self.configurations.iter().position(|it| it.role == role && can_verify(it));
        with_role(None).or_else(|| with_role(Some(Role::Verifier)))
    }

    /// The indices of the configurations that are rows of a table.
    pub fn row_indices(&self) -> impl Iterator<Item = usize> {
        (0..self.configurations.len()).filter(|&index| self.configurations[index].role.is_none())
    }

    /// Each row that has another row as its reference, with that reference.
    pub fn pairs(&self) -> Vec<(usize, usize)> {
        let pairs = self.row_indices().filter_map(|index| Some((index, self.reference_of(index)?)));
        pairs.filter(|(index, reference)| index != reference).collect()
    }

    /// Each row that its manifest compares with another preset of the same engine, if that preset has a row too.
    pub fn preset_comparisons(&self) -> Vec<ComparedPresets<'_>> {
        let rows = || self.configurations.iter().enumerate().filter(|(_, it)| it.role.is_none());
        let comparisons = rows().filter_map(|(configuration, row)| {
            let wanted = row.against.as_ref()?;
            let has_preset =
                |it: &Configuration| it.preset.as_deref().unwrap_or(DEFAULT_PRESET) == wanted.preset;
            let is_alike = |it: &Configuration| {
                (&it.engine, &it.model, &it.device, it.threads)
                    == (&row.engine, &row.model, &row.device, row.threads)
            };
            // The dtypes may differ, because a preset may set the dtype.
            let others = rows().filter(|(_, other)| has_preset(other) && is_alike(other));
            let nearest = others.max_by_key(|(index, other)| (other.dtype == row.dtype, Reverse(*index)));
            Some(ComparedPresets { configuration, against: nearest?.0, effect: &wanted.effect })
        });
        comparisons.collect()
    }

    /// The reference of a configuration. It has the label or engine that `Plan::reference` names, the same model, and the most
    /// other factors in common. If all rows of the model are of that engine, the row with that label, or else the first row, is
    /// the reference: so two numbers of threads are compared with each other.
    pub fn reference_of(&self, configuration: usize) -> Option<usize> {
        let row = self.configurations.get(configuration)?;
        let equal_factors = |it: &Configuration| {
            let same = [it.device == row.device, it.dtype == row.dtype, it.threads == row.threads];
            same.into_iter().filter(|&is_same| is_same).count()
        };
        let rows = self.configurations.iter().enumerate().filter(|(_, other)| other.role.is_none());
        let candidates = rows.filter(|(_, other)| other.model == row.model);
        let candidates: Vec<(usize, &Configuration)> = candidates.collect();
        let (references, others): (Vec<_>, Vec<_>) =
            candidates.into_iter().partition(|(_, it)| it.is_named(&self.reference));
        let rank = |(index, it): &(usize, &Configuration)| {
            let equal = if others.is_empty() { 0 } else { equal_factors(it) };
            (usize::from(it.label == self.reference), equal, Reverse(*index))
        };
        references.into_iter().max_by_key(rank).map(|(index, _)| index)
    }

    /// The label of the reference if all configurations have the same reference; otherwise `Plan::reference`.
    pub fn reference_label(&self) -> &str {
        let references: BTreeSet<usize> =
            self.row_indices().filter_map(|row| self.reference_of(row)).collect();
        match references.first() {
            Some(&only) if references.len() == 1 => &self.configurations[only].label,
            _ => &self.reference,
        }
    }

    /// The name of a configuration in a warning. A twin has the name of its row.
    pub fn name_in_warnings(&self, configuration: usize) -> String {
        match self.configurations[configuration].role {
            Some(Role::Twin { of }) => format!("{}{OF_TWIN}", self.configurations[of].label),
            _ => self.configurations[configuration].label.clone(),
        }
    }

    /// The twin of a configuration, which shows the noise of its measurements.
    pub fn twin_of(&self, configuration: usize) -> Option<usize> {
        self.configurations.iter().position(|it| it.role == Some(Role::Twin { of: configuration }))
    }
}
