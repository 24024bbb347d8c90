//! The conformance checks: which parts of the protocol an engine keeps, lacks or breaks.
//!
//! A check is one entry in the table of its file: a name, the property that it property, and a function that talks to the
//! `Subject`. To add one, add an entry. Checks know no scenario and measure nothing.

mod asking;
mod broken;
mod generate;
mod lifetime;
mod load;
mod options;
mod overlap;
mod page;
mod prompts;
mod result;
mod score;
mod subject;
mod wire;

use std::collections::BTreeMap;
use std::str::FromStr;

use anyhow::Result;
use clap::Args;

use crate::cli::exit_code::{DONE, FAILED_CASES};
use crate::commands::output;
use crate::engines::registry::Registry;
use crate::machine::Device;
use crate::machine::cpu;
use crate::plan::Configuration;
use crate::plan::models;
use crate::record::new_id;
use crate::run::process::Deadlines;
use crate::run::process::Keeper;
use crate::shell::Usage;
use result::{Counts, Evidence, Not};
use subject::{Check, Subject};

#[derive(Debug, Args)]
pub struct CheckArgs {
    /// An engine by name, or the path of any program
    #[arg(value_name = "NAME|PATH")]
    pub engine: String,
    /// A model folder or file; default: the embedded model
    #[arg(short, long, value_name = "PATH")]
    pub model: Option<String>,
    /// Device; default: the CPU, or the engine's first device if it has no CPU
    #[arg(long, value_parser = Device::from_str)]
    pub device: Option<Device>,
    /// Time limit of an answer or a load, in seconds
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    pub timeout: Option<u64>,
    /// Print every message in both directions and the engine's stderr
    #[arg(long)]
    pub debug: bool,
}

/// In this order: later checks need the properties that earlier ones prove.
const GROUPS: &[(&str, &[Check])] = &[
    ("hello", lifetime::START),
    ("load", load::CHECKS),
    ("generate", generate::CHECKS),
    ("prompts", prompts::CHECKS),
    ("options", options::CHECKS),
    ("score and facts", score::CHECKS),
    ("broken lines", broken::CHECKS),
    ("overlap and cancel", overlap::CHECKS),
    ("leaving", lifetime::END),
];

pub fn check(arguments: &CheckArgs) -> Result<u8> {
    let configuration = configuration(arguments)?;
    if let Some(missing) = &configuration.unavailable {
        let why = anyhow::anyhow!("engine `{}` cannot run here: {}", configuration.label, missing.said());
        output::complain(&why);
        return Ok(FAILED_CASES);
    }
    let deadlines = Deadlines::with_timeout(arguments.timeout);
    let run = new_id();
    // From here on no process that this program starts outlives it.
    let _keeper = Keeper::start(&run)?;
    let (label, model) = (configuration.label.clone(), configuration.model.name.clone());
    output::print(page::head(&label, &configuration.command, &model).as_bytes())?;
    let mut subject = Subject::new(configuration, run, deadlines, arguments.debug)?;
    subject.device_is_asked_for = arguments.device.is_some();
    let mut told = Told::default();
    for (group, checks) in GROUPS {
        if subject.blocked().is_none() {
            output::print(format!("\n{group}\n").as_bytes())?;
            make(checks, &mut subject, &mut told)?;
        }
    }
    if let Some(why) = subject.blocked() {
        let all: usize = GROUPS.iter().map(|(_, checks)| checks.len()).sum();
        let rest = all as u32 - told.counts.all();
        told.counts.unreached += rest;
        output::print(page::skipped(rest, why, told.wrong.get(why).copied()).as_bytes())?;
    }
    let verdict = match subject.no_engine {
        true => page::no_engine(&label),
        false => page::verdict(&label, &told.counts),
    };
    output::print(verdict.as_bytes())?;
    Ok(if told.counts.wrong + told.counts.unreached == 0 { DONE } else { FAILED_CASES })
}

/// Makes the checks and prints each result. Successive checks that were not made for the same reason share one entry.
fn make(checks: &[Check], subject: &mut Subject, told: &mut Told) -> Result<()> {
    let mut unmade: Option<(Not, Vec<&str>)> = None;
    for check in checks {
        let result = match subject.blocked() {
            None => subject.undergo(check.run),
            Some(_) => break,
        };
        if matches!(result, Err(Not::Unreached(_))) && subject.blocked().is_some() {
            // It belongs to the checks that cannot be made.
            break;
        }
        told.counts.add(&result);
        match (&result, &mut unmade) {
            (Err(why), Some((same, names))) if why == same => {
                names.push(check.name);
                continue;
            }
            _ => {}
        }
        if let Some((why, names)) = unmade.take() {
            output::print(page::unmade(&names, &why).as_bytes())?;
        }
        match result {
            Ok(()) => output::print(page::passed(check).as_bytes())?,
            Err(Not::Wrong(what)) => output::print(told.wrong(check, what, &subject.evidence()).as_bytes())?,
            Err(why) => unmade = Some((why, vec![check.name])),
        }
    }
    match unmade {
        Some((why, names)) => output::print(page::unmade(&names, &why).as_bytes()),
        None => Ok(()),
    }
}

/// The results that were printed so far.
#[derive(Debug, Default)]
struct Told {
    counts: Counts,
    /// The faults, each with the name of the check that reported it first.
    wrong: BTreeMap<String, &'static str>,
}

impl Told {
    /// Prints a fault. One fault may show in many checks, so its full text is printed once.
    fn wrong(&mut self, check: &Check, what: String, evidence: &Evidence) -> String {
        match self.wrong.get(&what) {
            Some(first) => page::wrong_again(check, first, &what, evidence),
            None => {
                let entry = page::wrong(check, &what, evidence);
                self.wrong.insert(what, check.name);
                entry
            }
        }
    }
}

/// The configuration that a run would start: on the CPU, unless the user or the engine names another device.
fn configuration(arguments: &CheckArgs) -> Result<Configuration> {
    let registry = Registry::open()?;
    let found = registry.find(&arguments.engine).map_err(|error| Usage(format!("{error:#}")))?;
    let candidate = registry.candidate(&found);
    let device = arguments.device.clone().unwrap_or_else(Device::cpu);
    let start = candidate.on(&device).clone();
    let preset = candidate.preset.as_ref().map(|preset| format!(":{preset}")).unwrap_or_default();
    Ok(Configuration {
        alone: true,
        label: format!("{}{preset}", candidate.engine),
        engine: candidate.engine,
        preset: candidate.preset,
        command: start.command,
        model: models::model(arguments.model.as_deref())?,
        device,
        dtype: candidate.dtype,
        threads: cpu::all_threads(),
        options: candidate.options,
        unavailable: start.unavailable,
        ..Configuration::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_check_has_a_unique_name_that_fits_its_column() {
        let checks: Vec<&Check> = GROUPS.iter().flat_map(|(_, checks)| *checks).collect();
        assert!(checks.len() > 40, "{}", checks.len());
        for check in &checks {
            let named = checks.iter().filter(|other| other.name == check.name).count();
            assert_eq!(named, 1, "{}", check.name);
            assert!(check.name.len() <= page::NAME_WIDTH, "{}", check.name);
            let shown = page::passed(check);
            assert!(!check.property.is_empty() && shown.lines().count() == 1, "{shown}");
        }
    }

    #[test]
    fn a_repeated_fault_is_printed_in_full_only_once() {
        let sent = b"{}\n".to_vec();
        let (mut told, evidence) = (Told::default(), Evidence { sent, ..Evidence::default() });
        let [first, second] = [&lifetime::START[0], &lifetime::START[1]];
        assert!(told.wrong(first, "it died".into(), &evidence).contains("received"));
        assert!(told.wrong(second, "it died".into(), &evidence).contains("the same as `hello`: it died\n"));
        assert!(told.wrong(second, "it lied".into(), &evidence).contains("it lied"));
    }

    #[test]
    fn each_outcome_has_its_own_counter() {
        let mut counts = Counts::default();
        let why = || String::new();
        for result in
            [Ok(()), Ok(()), Err(Not::Absent(why())), Err(Not::Wrong(why())), Err(Not::Unreached(why()))]
        {
            counts.add(&result);
        }
        assert_eq!(counts, Counts { passed: 2, absent: 1, wrong: 1, unreached: 1 });
    }
}
