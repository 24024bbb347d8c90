//! The names of engines, and the facts that they reported.

use std::collections::BTreeMap;

use super::factors::FACTORS;
use super::rows::{Dtype, Engine, Requested};
use crate::machine::Device;
use crate::plan::{Configuration, Plan, Role};
use crate::record::{Launch, RunRecord};
use crate::text::{line, shorten};

/// The largest width, in columns, of a short text that an engine sent, such as its version, in any format.
const MAX_WORD_WIDTH: usize = 200;
/// The largest width of such a text within a sentence.
const MAX_WORD_IN_SENTENCE: usize = 24;

/// The engines, one for each configuration of the plan.
pub fn engines(record: &RunRecord) -> Vec<Engine> {
    let plan = &record.header.plan;
    let named = plan.configurations.iter().zip(names(plan)).enumerate();
    let engines = named.map(|(index, (configuration, name))| {
        let engine = engine_of(configuration, record.launches_of(index));
        let version = record.hello_of(index).map(|hello| word(&hello.version));
        let version = version.or_else(|| engine.version.clone());
        Engine { name, version, ..engine }
    });
    engines.collect()
}

/// Warnings about configurations that ran with another device, dtype or number of threads than requested, or whose launches
/// differ.
pub fn mismatches(record: &RunRecord, engines: &[Engine]) -> Vec<String> {
    let mut mismatches = Vec::new();
    for (index, configuration) in record.header.plan.configurations.iter().enumerate() {
        // A twin would repeat the warnings of its original.
        if matches!(configuration.role, Some(Role::Twin { .. })) {
            continue;
        }
        let label = &engines[index].label;
        let launches = record.launches_of(index);
        let launched: Vec<Engine> =
            launches.map(|launch| engine_of(configuration, std::iter::once(launch))).collect();
        for engine in &launched {
            mismatches.extend(FACTORS.iter().filter_map(|factor| {
                let (requested, reported) = factor.mismatch(engine)?;
                let [requested, reported] =
                    [requested, reported].map(|value| shorten(&value, MAX_WORD_IN_SENTENCE));
                let title = factor.heading.title;
                Some(line(&format!("{label}: reports {title} `{reported}`, but `{requested}` was requested")))
            }));
        }
        if launched.windows(2).any(|pair| pair[0] != pair[1]) {
            mismatches.push(format!(
                "{label}: its launches differ in configuration or version; the table shows the first launch"
            ));
        }
    }
    mismatches
}

/// The engine and its preset. A number follows where no column tells two configurations apart.
fn names(plan: &Plan) -> Vec<String> {
    let name = |it: &Configuration| {
        let preset = it.preset.iter().map(|preset| format!(":{preset}"));
        line(&format!("{}{}", it.engine, preset.collect::<String>()))
    };
    let columns = |it: &Configuration| {
        (name(it), it.model.name.clone(), it.device.clone(), it.dtype.clone(), it.threads)
    };
    let named = plan.configurations.iter().enumerate().map(|(index, it)| {
        let earlier = &plan.configurations[..index];
        match earlier.iter().filter(|other| columns(other) == columns(it)).count() {
            0 => name(it),
            earlier => format!("{} #{}", name(it), earlier + 1),
        }
    });
    named.collect()
}

/// The facts that the launches reported, each from the first launch that has it.
fn engine_of<'a>(
    configuration: &Configuration,
    launches: impl Iterator<Item = &'a Launch> + Clone,
) -> Engine {
    let facts = || launches.clone().filter_map(|launch| Some(&launch.loaded.as_ref()?.facts));
    let hello = launches.clone().find_map(|launch| launch.hello.as_ref());
    // An engine without an answer to `hello` may still have reported its libraries.
    let libraries = || facts().map(|facts| libraries(&facts.libraries)).find(|text| !text.is_empty());
    let to_device = |name: &str| Device::from(word(name).as_str());
    let requested = Requested {
        device: configuration.device.is_known().then(|| to_device(configuration.device.as_str())),
        dtype: configuration.dtype.as_deref().map(word),
        threads: Some(configuration.threads).filter(|&threads| threads > 0),
    };
    Engine {
        name: String::new(),
        label: line(&configuration.label),
        engine: line(&configuration.engine),
        model: line(&configuration.model.name),
        version: hello.map(|hello| word(&hello.version)).or_else(libraries),
        device: facts().find_map(|facts| facts.device.as_deref()).map(to_device),
        dtype: facts().find_map(dtype_of),
        threads: facts().find_map(|facts| facts.threads),
        requested,
    }
}

fn libraries(versions: &BTreeMap<String, String>) -> String {
    let all = versions.iter().map(|(name, version)| format!("{name} {version}"));
    word(&all.collect::<Vec<_>>().join(", "))
}

/// The text as one safe line, shortened to `MAX_WORD_WIDTH`.
pub fn word(text: &str) -> String {
    shorten(&line(text), MAX_WORD_WIDTH)
}

fn dtype_of(facts: &protocol::Facts) -> Option<Dtype> {
    match (facts.weights_dtype.as_deref(), facts.compute_dtype.as_deref()) {
        (Some(weights), Some(compute)) if weights != compute => {
            Some(Dtype { weights: word(weights), compute: Some(word(compute)) })
        }
        (weights, compute) => Some(Dtype { weights: word(weights.or(compute)?), compute: None }),
    }
}
