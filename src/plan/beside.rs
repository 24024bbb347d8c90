//! Which configurations are compared, and what is measured beside a row for what it says about it.

use std::cmp::Reverse;

use super::{Asked, Beside, Configuration, Model, Order, Plan, WITNESS_DTYPE};
use crate::engines::manifest::DEFAULT_PRESET;
use crate::machine::Device;
use stats::FIRM;

/// A comparison that is about one engine: what a preset changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Derived<'a> {
    pub configuration: usize,
    pub against: usize,
    pub says: &'a str,
}

impl Plan {
    /// The same once more beside a configuration that others are compared with, where there may be a verdict.
    pub fn add_twin(&mut self, of: usize) {
        let too_few = self.extent.blocks.is_some_and(|blocks| blocks < FIRM as u32);
        if too_few || self.order == Order::Sequential || self.twin_of(of).is_some() {
            return;
        }
        self.twin(of);
    }

    fn twin(&mut self, of: usize) {
        let mut twin = self.configurations[of].clone();
        twin.label = format!("{} (twin)", twin.label);
        twin.beside = Some(Beside::Twin { of });
        self.add(twin, &self.workloads_of(of));
    }

    /// A twin for each row, however few the blocks: what is measured is noise, and there is no verdict to wait for.
    pub fn with_twins_of_all(mut self) -> Self {
        for of in 0..self.configurations.len() {
            if self.configurations[of].beside.is_none() && self.twin_of(of).is_none() {
                self.twin(of);
            }
        }
        self
    }

    /// Nothing is measured: engines are only asked for proof.
    pub fn proof_alone(mut self) -> Self {
        self.cases.clear();
        self
    }

    /// Who says what a model's output should be, where no row is the one that does.
    pub(super) fn add_witness(&mut self, asked: &Asked, model: &Model) {
        let Some(candidate) = asked.witness.as_ref().filter(|_| self.witness_of(model).is_none()) else {
            return;
        };
        let witness = Configuration {
            label: format!("{} (witness)", candidate.engine),
            engine: candidate.engine.clone(),
            preset: candidate.preset.clone(),
            options: candidate.options.clone(),
            // Whatever devices were asked for.
            command: candidate.on(&Device::cpu()).command.clone(),
            model: model.clone(),
            device: Device::cpu(),
            dtype: Some(WITNESS_DTYPE.into()),
            threads: asked.threads.iter().copied().max().unwrap_or(1),
            beside: Some(Beside::Witness),
            vouches: true,
            ..Configuration::default()
        };
        self.add(witness, &[]);
    }

    /// The configurations that are measured, as rows or beside them: not those that are asked for proof alone.
    pub fn measured(&self) -> Vec<usize> {
        let all = self.configurations.iter().enumerate();
        all.filter(|(_, it)| it.beside != Some(Beside::Witness)).map(|(index, _)| index).collect()
    }

    /// The configuration that the others on a model are held against.
    pub fn witness_of(&self, model: &Model) -> Option<usize> {
        let is_it = |it: &Configuration| it.vouches && it.model == *model && it.unavailable.is_none();
        let rows = self.configurations.iter().position(|it| it.beside.is_none() && is_it(it));
        rows.or_else(|| {
            self.configurations.iter().position(|it| it.beside == Some(Beside::Witness) && is_it(it))
        })
    }

    /// Each configuration that is a row, with the one that it is compared with.
    pub fn pairs(&self) -> Vec<(usize, usize)> {
        let rows =
            (0..self.configurations.len()).filter(|&index| self.configurations[index].beside.is_none());
        let pairs = rows.filter_map(|index| Some((index, self.reference_of(index)?)));
        pairs.filter(|(index, reference)| index != reference).collect()
    }

    /// Each row that its manifest wants held against another preset of its engine, with that one where it is a row too.
    pub fn derived(&self) -> Vec<Derived<'_>> {
        let rows = || self.configurations.iter().enumerate().filter(|(_, it)| it.beside.is_none());
        let found = rows().filter_map(|(configuration, own)| {
            let wanted = own.against.as_ref()?;
            let named = |it: &Configuration| it.preset.as_deref().unwrap_or(DEFAULT_PRESET) == wanted.preset;
            let same = |it: &Configuration| {
                (&it.engine, &it.model, &it.device, it.threads)
                    == (&own.engine, &own.model, &own.device, own.threads)
            };
            // In what is loaded they may differ: that may be what is asked.
            let others = rows().filter(|(_, other)| named(other) && same(other));
            let nearest = others.max_by_key(|(index, other)| (other.dtype == own.dtype, Reverse(*index)));
            Some(Derived { configuration, against: nearest?.0, says: &wanted.says })
        });
        found.collect()
    }

    /// The configuration that another is compared with: of the reference's label or engine, on the same model, and with as
    /// many of the other factors the same as there is one.
    pub fn reference_of(&self, configuration: usize) -> Option<usize> {
        let own = self.configurations.get(configuration)?;
        let alike = |other: &Configuration| {
            usize::from(other.device == own.device)
                + usize::from(other.dtype == own.dtype)
                + usize::from(other.threads == own.threads)
        };
        let rows = self.configurations.iter().enumerate().filter(|(_, other)| other.beside.is_none());
        let candidates = rows.filter(|(_, other)| other.model == own.model);
        let named = |it: &Configuration| {
            let with_preset = it.preset.as_ref().map(|preset| format!("{}:{preset}", it.engine));
            it.label == self.reference || with_preset.unwrap_or_else(|| it.engine.clone()) == self.reference
        };
        let best = candidates.filter(|(_, other)| named(other)).max_by_key(|(index, other)| {
            (usize::from(other.label == self.reference), alike(other), Reverse(*index))
        });
        best.map(|(index, _)| index)
    }

    /// What stands beside a configuration to show how far it lies from itself.
    pub fn twin_of(&self, configuration: usize) -> Option<usize> {
        self.configurations.iter().position(|it| it.beside == Some(Beside::Twin { of: configuration }))
    }
}
