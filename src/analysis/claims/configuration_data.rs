//! The input and the result of the checks: one configuration with its data, and a claim that does not hold.

use std::collections::BTreeMap;

use protocol::Facts;
use serde::Serialize;

use crate::analysis::agreement::Agreement;
use crate::analysis::metric::Unit;
use crate::analysis::values::Values;
use crate::machine::Device;
use crate::plan::{Case, Configuration};
use crate::record::{Launch, RunRecord, Sample};

/// A claim that does not hold: the reported value and the observed value.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Contradiction {
    #[serde(skip)]
    pub configuration: usize,
    /// The label of the configuration.
    #[serde(rename = "engine")]
    pub label: String,
    pub about: About,
    pub reported: String,
    pub observed: String,
    /// A sentence with the engine, both values and the source of the observed value.
    #[serde(skip)]
    pub message: String,
    /// True in every contradiction. Earlier versions had some without an effect on the ranking, and programs read this field.
    pub excludes_from_ranking: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum About {
    /// The dtype of the weights or of the arithmetic.
    Dtype,
    Threads,
    PrefixCache,
    /// The number of tokens of each prompt that the engine computed.
    PromptTokens,
    Eos,
    /// The times that the engine reports.
    Clock,
}

impl About {
    /// The words after `about` in a sentence.
    pub fn name(self) -> &'static str {
        match self {
            Self::Dtype => "the dtype",
            Self::Threads => "the threads",
            Self::PrefixCache => "the prefix cache",
            Self::PromptTokens => "the prompt tokens",
            Self::Eos => "EOS",
            Self::Clock => "its clock",
        }
    }
}

pub fn bytes(bytes: f64) -> String {
    Unit::Bytes.show(bytes)
}

pub fn time(ns: f64) -> String {
    Unit::Nanoseconds.show(ns)
}

/// One configuration with all its data in the record, without launches for output checks.
pub struct ConfigurationData<'a> {
    pub record: &'a RunRecord,
    pub values: &'a Values<'a>,
    pub index: usize,
    pub configuration: &'a Configuration,
    pub launches: BTreeMap<u32, &'a Launch>,
    pub agreement: &'a Agreement,
    /// The samples of these launches, of any kind, in the order of the record: warm-ups too show memory, caches and clocks. Only
    /// requests that generate tokens, and only alone: overlapping requests wait for each other.
    pub samples: Vec<&'a Sample>,
}

pub fn subjects<'a>(values: &'a Values<'a>, agreements: &'a [Agreement]) -> Vec<ConfigurationData<'a>> {
    let (record, plan) = (values.record, values.plan);
    let configurations = plan.configurations.iter().enumerate().zip(agreements);
    let subject = |((index, configuration), agreement): ((usize, &'a Configuration), &'a Agreement)| {
        ConfigurationData {
            record,
            values,
            index,
            configuration,
            agreement,
            launches: record.launches_of(index).map(|launch| (launch.launch, launch)).collect(),
            samples: Vec::new(),
        }
    };
    let mut subjects: Vec<ConfigurationData> = configurations.map(subject).collect();
    for sample in &record.samples {
        let subject = &mut subjects[plan.cases[sample.case].configuration];
        let workload = &plan.cases[sample.case].workload;
        let generates_alone = workload.kind.generates() && !workload.shape.overlaps();
        if subject.launches.contains_key(&sample.launch) && generates_alone {
            subject.samples.push(sample);
        }
    }
    subjects
}

impl<'a> ConfigurationData<'a> {
    pub fn contradiction(
        &self,
        about: About,
        reported: String,
        observed: String,
        message: &str,
    ) -> Contradiction {
        let (configuration, label) = (self.index, self.configuration.label.clone());
        let message = format!("{label}: {message}");
        Contradiction {
            configuration,
            label,
            about,
            reported,
            observed,
            message,
            excludes_from_ranking: true,
        }
    }

    /// The facts that the engine reported after each load.
    pub fn reported(&self) -> impl Iterator<Item = &'a Facts> {
        self.launches.values().filter_map(|launch| Some(&launch.loaded.as_ref()?.facts))
    }

    /// The first reported value of a fact.
    pub fn fact<T>(&self, read: impl Fn(&'a Facts) -> Option<T>) -> Option<T> {
        self.reported().find_map(read)
    }

    /// Whether the processes that a run starts do all the work of the engine, so that their memory and CPU time are complete.
    pub fn all_work_is_observed(&self) -> bool {
        let loaded = self.launches.values().filter_map(|launch| launch.loaded.as_ref());
        self.is_on_cpu() && loaded.map(|loaded| loaded.pids.len()).sum::<usize>() == 0
    }

    /// Whether the engine computes on the CPU, as it reports or as requested.
    pub fn is_on_cpu(&self) -> bool {
        let reported = self.fact(|facts| facts.device.as_deref());
        Device::in_effect(reported, &self.configuration.device).is_cpu()
    }

    /// The measured cases of the configuration, in the plan's order, that generate tokens.
    pub fn cases(&self) -> impl Iterator<Item = usize> {
        let cases = self.record.header.plan.cases.iter().enumerate();
        let is_work = |case: &Case| case.configuration == self.index && case.workload.kind.generates();
        let of_configuration = cases.filter(move |(_, case)| is_work(case)).map(|(index, _)| index);
        of_configuration.filter(|&case| self.values.is_measured(case))
    }

    /// The measured requests of all cases of the configuration.
    pub fn measured(&self) -> impl Iterator<Item = &'a Sample> {
        self.cases().flat_map(|case| self.values.samples(case))
    }

    pub fn case(&self, index: usize) -> &'a Case {
        &self.record.header.plan.cases[index]
    }

    pub fn case_name(&self, case: usize) -> String {
        format!("`{}`", self.case(case).workload.label)
    }
}
