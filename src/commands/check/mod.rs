//! The conformance checks: which parts of the protocol an engine supports, lacks or violates.
//!
//! A check is one entry in the table of its file: a name, the property that it proves, and a function that talks to the
//! `CheckedEngine`. To add one, add an entry. Checks know no scenario and measure nothing.

mod checked_engine;
mod connection;
mod generate;
mod lifetime;
mod load;
mod options;
mod overlap;
mod page;
mod prompts;
mod requests;
mod result;
mod score;

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

use anyhow::Result;
use clap::Args;

use crate::analysis::agreement::{FEATURES, implement};
use crate::cli::exit_code::{DONE, FAILED_CASES};
use crate::cli::{PassEnvArgs, parse_key_value};
use crate::commands::output;
use crate::engines::load_values::LoadValue;
use crate::engines::registry::Registry;
use crate::machine::{Device, cpu};
use crate::plan::{Configuration, models};
use crate::record::new_id;
use crate::run::Settings;
use crate::run::process::{Deadlines, Keeper};
use crate::shell::{parse_timeout, usage};
use checked_engine::{Check, CheckedEngine};
use result::{Counts, Evidence, Finding};

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
    /// Load option of the engine; the value is JSON or text; may be given several times
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = parse_key_value)]
    pub options: Vec<(String, serde_json::Value)>,
    /// Time limit of an answer or a load, as in `10m`; default: 2m for an answer, 10m for a load
    #[arg(long, value_name = "TIME", value_parser = parse_timeout)]
    pub timeout: Option<Duration>,
    /// Print every message in both directions and the engine's stderr
    #[arg(long)]
    pub debug: bool,
    #[command(flatten)]
    pub pass_env: PassEnvArgs,
}

/// All checks. Their order matters: later checks need the properties that earlier checks prove.
const GROUPS: &[(&str, &[Check])] = &[
    ("hello", lifetime::START),
    ("load", load::CHECKS),
    ("generate", generate::CHECKS),
    ("prompts", prompts::CHECKS),
    ("options", options::CHECKS),
    ("score and facts", score::CHECKS),
    ("invalid lines", generate::INVALID_LINES),
    ("overlap and cancel", overlap::CHECKS),
    ("shutdown", lifetime::END),
];

pub fn check(arguments: &CheckArgs) -> Result<u8> {
    let (configuration, needs_option) = configuration(arguments)?;
    if let Some(missing) = &configuration.unavailable {
        let why = anyhow::anyhow!("engine `{}` cannot run here: {}", configuration.label, missing.message());
        output::print_error(&why);
        return Ok(FAILED_CASES);
    }
    let run_id = new_id();
    // The keeper ends every process that this program leaves behind.
    let keeper = Keeper::start(&run_id)?;
    let settings = Settings {
        deadlines: Deadlines::with_timeout(arguments.timeout),
        debug: arguments.debug,
        passed: arguments.pass_env.variables(),
        keeper: Some(keeper.handle()),
        ..Settings::default()
    };
    let (label, model) = (configuration.label.clone(), configuration.model.name.clone());
    output::print_text(&page::head(&label, &configuration.command, &model))?;
    let mut subject = CheckedEngine::new(configuration, run_id, settings)?;
    subject.device_is_named = arguments.device.is_some();
    subject.needs_option = needs_option;
    let mut printed = Printed::default();
    for (group, checks) in GROUPS {
        if subject.blocked().is_none() {
            output::print_text(&format!("\n{group}\n"))?;
            run_group(checks, &mut subject, &mut printed)?;
        }
    }
    if let Some(why) = subject.blocked() {
        let all: usize = GROUPS.iter().map(|(_, checks)| checks.len()).sum();
        let not_run = all as u32 - printed.counts.all();
        printed.counts.skipped += not_run;
        output::print_text(&page::skipped(not_run, why, printed.faults.get(why).copied()))?;
    }
    let verdict = match subject.no_engine {
        true => page::no_engine(&label),
        false => page::verdict(&label, &printed.counts),
    };
    output::print_text(&verdict)?;
    if subject.blocked().is_none() && !subject.can_be_verified() {
        output::print_text(&format!(
            "UNVERIFIED in every run, with any verifier; hint: {}\n",
            implement(&FEATURES)
        ))?;
    }
    Ok(if printed.counts.wrong + printed.counts.skipped == 0 { DONE } else { FAILED_CASES })
}

/// Runs the checks and prints each result. Successive checks that are absent, or skipped, for the same reason share one entry.
fn run_group(checks: &[Check], subject: &mut CheckedEngine, printed: &mut Printed) -> Result<()> {
    let mut pending: Option<(Finding, Vec<&str>)> = None;
    for check in checks {
        if subject.blocked().is_some() {
            break;
        }
        let result = subject.run_check(check.run);
        if matches!(result, Err(Finding::Skipped(_))) && subject.blocked().is_some() {
            // This check is counted with those that cannot run.
            break;
        }
        printed.counts.add(&result);
        if let (Err(why), Some((same, names))) = (&result, &mut pending)
            && why == same
        {
            names.push(check.name);
            continue;
        }
        print_pending(pending.take())?;
        match result {
            Ok(()) => output::print_text(&page::passed(check))?,
            Err(Finding::Wrong(fault)) => {
                output::print_text(&printed.fault(check, fault, &subject.evidence()))?
            }
            Err(why) => pending = Some((why, vec![check.name])),
        }
    }
    print_pending(pending)
}

fn print_pending(pending: Option<(Finding, Vec<&str>)>) -> Result<()> {
    pending.map_or(Ok(()), |(why, names)| output::print_text(&page::not_passed(&names, &why)))
}

/// The results that were printed so far.
#[derive(Debug, Default)]
struct Printed {
    counts: Counts,
    /// The faults, each with the name of the check that reported it first.
    faults: BTreeMap<String, &'static str>,
}

impl Printed {
    /// The entry of a fault. One fault may show in many checks, so its full text is printed once.
    fn fault(&mut self, check: &Check, fault: String, evidence: &Evidence) -> String {
        if let Some(first) = self.faults.get(&fault) {
            return page::wrong_again(check, first, &fault, evidence);
        }
        let entry = page::wrong(check, &fault, evidence);
        self.faults.insert(fault, check.name);
        entry
    }
}

/// The configuration that a run would start: on the CPU, unless the user or the engine names another device. Also returns whether
/// a load needs one of the engine's options.
fn configuration(arguments: &CheckArgs) -> Result<(Configuration, bool)> {
    let registry = Registry::open()?;
    let engine = registry.find(&arguments.engine).map_err(usage)?;
    let candidate = registry.candidate(&engine);
    let device = arguments.device.clone().unwrap_or_else(Device::cpu);
    let start = candidate.start_for(&device).clone();
    let options = arguments.options.iter();
    let named_device = arguments.device.iter().map(LoadValue::Device);
    let values = options.clone().map(|(name, value)| LoadValue::OptionValue(name, value));
    let unsupported = candidate.unsupported(named_device.chain(values));
    let preset = candidate.preset.as_ref().map_or(String::new(), |preset| format!(":{preset}"));
    let needs_option = !candidate.load.needs_one_of.is_empty();
    let configuration = Configuration {
        alone: true,
        label: format!("{}{preset}", candidate.engine),
        engine: candidate.engine,
        preset: candidate.preset,
        command: start.command,
        model: models::model(arguments.model.as_deref())?,
        device,
        dtype: candidate.dtype,
        threads: cpu::all_threads(),
        options: candidate.options.into_iter().chain(options.cloned()).collect(),
        unavailable: unsupported.or(start.unavailable),
        ..Configuration::default()
    };
    Ok((configuration, needs_option))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_check_has_a_unique_name_that_fits_its_column() {
        let checks: Vec<&Check> = GROUPS.iter().flat_map(|(_, checks)| *checks).collect();
        assert!(checks.len() > 40, "{}", checks.len());
        for check in &checks {
            let count = checks.iter().filter(|other| other.name == check.name).count();
            assert_eq!(count, 1, "{}", check.name);
            assert!(check.name.len() <= page::NAME_WIDTH, "{}", check.name);
            let shown = page::passed(check);
            assert!(!check.property.is_empty() && shown.lines().count() == 1, "{shown}");
        }
    }

    #[test]
    fn a_repeated_fault_is_printed_in_full_only_once() {
        let sent = b"{}\n".to_vec();
        let (mut printed, evidence) = (Printed::default(), Evidence { sent, ..Evidence::default() });
        let [first, second] = [&lifetime::START[0], &lifetime::START[1]];
        assert!(printed.fault(first, "it died".into(), &evidence).contains("received"));
        let again = printed.fault(second, "it died".into(), &evidence);
        assert!(again.contains("the same as `hello`: it died\n"), "{again}");
        assert!(printed.fault(second, "it lied".into(), &evidence).contains("it lied"));
    }

    #[test]
    fn each_outcome_has_its_own_counter() {
        let mut counts = Counts::default();
        let not_passed =
            [Finding::Absent, Finding::Wrong, Finding::Skipped].map(|kind| Err(kind(String::new())));
        [Ok(()), Ok(())].into_iter().chain(not_passed).for_each(|result| counts.add(&result));
        assert_eq!(counts, Counts { passed: 2, absent: 1, wrong: 1, skipped: 1 });
    }
}
