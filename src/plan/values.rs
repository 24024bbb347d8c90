//! Refuses values of the command line that no selected engine accepts. If some of the engines accept a value, the others
//! become rows with the reason. A value is refused in the same way if the presets of all rows set another one.

use anyhow::{Result, bail};

use super::arrivals::Rate;
use super::latency_limits::LatencyLimits;
use super::{Mode, Selection, engine_name};
use crate::engines::load_values::LoadValue;
use crate::engines::registry::text_of;
use crate::machine::Device;
use crate::plan::dtype;
use crate::shell::{
    Usage, corrected_command, similar_name, this_command_with, this_command_with_value, this_command_without,
    unknown_name,
};
use crate::text::{either, plural};

/// Refuses a device, a dtype or a load option that none of the selected engines accepts.
pub fn check(selection: &Selection) -> Result<()> {
    let devices = selection.devices.iter().map(LoadValue::Device);
    let dtypes = selection.dtypes.iter().flatten().map(|dtype| LoadValue::Dtype(dtype));
    let options = selection.options.keys().map(|name| LoadValue::Option(name));
    let option_values = selection.options.iter().map(|(name, value)| LoadValue::OptionValue(name, value));
    for value in devices.chain(dtypes).chain(options).chain(option_values) {
        let candidates = &selection.candidates;
        if let LoadValue::Dtype(name) = value
            && dtype::bits(name).is_none()
            && candidates.iter().all(|it| it.load.listed(value).is_none())
        {
            // A program that lists no dtypes may have any of those that exist.
            bail!(unknown_name("dtype", name, &dtype::names()));
        }
        if !candidates.iter().any(|it| it.load.accepts(value)) {
            let subject = match candidates.as_slice() {
                [only] => format!("`{}` has no", only.engine),
                _ => "none of the selected engines has the".into(),
            };
            bail!(Usage(format!("{subject} {value}\nhint: {}", hint(selection, value))));
        }
        if candidates.iter().all(|it| !it.load.accepts(value) || it.value_of_preset(value).is_some())
            && let Some((first, own)) =
                candidates.iter().find_map(|it| Some((it, it.value_of_preset(value)?)))
        {
            let row = engine_name(&first.engine, first.preset.as_deref());
            let message =
                format!("the preset of `{row}` has the {own}, and the command line names the {value}");
            let hint = corrected_command(&row, &first.engine)
                .unwrap_or_else(|| format!("name the engine without a preset: `-e {}`", first.engine));
            bail!(Usage(format!("{message}\nhint: {hint}")));
        }
    }
    Ok(())
}

/// The same dtype by the name that the engines use, or else all values that they accept.
fn hint(selection: &Selection, value: LoadValue) -> String {
    let loads = selection.candidates.iter().map(|candidate| &candidate.load);
    let (flag, wrong) = match value {
        LoadValue::Device(device) => ("--device", device.to_string()),
        LoadValue::Dtype(dtype) => ("--dtype", dtype.to_string()),
        LoadValue::Option(name) => ("--set", name.to_string()),
        LoadValue::OptionValue(name, value) => {
            let accepted = distinct(loads.filter_map(|load| load.option(name)).map(ToString::to_string));
            let (wrong, right) = (format!("{name}={}", text_of(value)), format!("{name}=VALUE"));
            let command = corrected_command(&wrong, &right).unwrap_or_else(|| format!("--set {right}"));
            return format!("{command} # VALUE is {}", accepted.join(", or "));
        }
    };
    // The user's value of another option may not be one of this option.
    let command = |right: &str| match value {
        LoadValue::Option(_) => {
            corrected_command(&wrong, right).unwrap_or_else(|| format!("--set {right}=VALUE"))
        }
        _ => this_command_with_value(flag, Some(&wrong), right),
    };
    let known = distinct(loads.filter_map(|load| load.listed(value)).flatten());
    let meant = match value {
        LoadValue::Dtype(wanted) => {
            let same = known.iter().find(|name| dtype::is_same(name, wanted)).copied();
            same.or_else(|| similar_name(wanted, &known))
        }
        // Engines name the kind of a GPU.
        LoadValue::Device(device) if device.family() == "gpu" => {
            known.iter().find(|name| !Device::from(**name).is_cpu()).copied()
        }
        LoadValue::Device(device) => similar_name(&device.to_string(), &known),
        LoadValue::Option(name) => similar_name(name, &known),
        LoadValue::OptionValue(..) => None,
    };
    if let Some(meant) = meant {
        return command(meant);
    }
    match known.as_slice() {
        [] => {
            format!("{} # there are no load options", this_command_without(&[("--set", true)], &[]))
        }
        [only] => command(only),
        known => format!("`{flag}` takes {}", either(known)),
    }
}

fn distinct<T: PartialEq>(items: impl Iterator<Item = T>) -> Vec<T> {
    let mut distinct = Vec::new();
    for item in items {
        if !distinct.contains(&item) {
            distinct.push(item);
        }
    }
    distinct
}

/// Refuses more threads than the processors that this program may use: they would only wait for each other.
pub fn check_threads(threads: &[u32], processors: u32) -> Result<()> {
    if let Some(threads) = threads.iter().find(|&&threads| threads > processors) {
        let here = plural(processors, "processor");
        let hint = this_command_with_value("--threads", Some(&threads.to_string()), &processors.to_string());
        bail!(Usage(format!("--threads {threads}: this program can use {here}\nhint: {hint}")));
    }
    Ok(())
}

/// Refuses other scenarios, blocks or processes beside a scenario that has one block of its own, in which one process of each engine is in
/// use for a set time.
pub fn check_alone(selection: &Selection) -> Result<()> {
    let Some(alone) = selection.scenarios.iter().find(|it| it.is_alone()) else { return Ok(()) };
    let name = alone.name;
    let (message, hint) = match selection.extent.blocks {
        _ if selection.scenarios.len() > 1 => (
            format!("`{name}` is measured alone, because it takes a set time"),
            this_command_without(&[("-s", true), ("--scenario", true)], &["-s", name]),
        ),
        _ if selection.mode == Mode::OneShot => (
            format!("--mode one-shot: in `{name}` one process answers all requests of an engine"),
            this_command_without(&[("--mode", true)], &[]),
        ),
        Some(2..) => (
            format!("--blocks: `{name}` has one block, whose length `--duration` sets"),
            this_command_without(&[("--blocks", true)], &[]),
        ),
        _ => return Ok(()),
    };
    bail!(Usage(format!("{message}\nhint: {hint}")))
}

/// Refuses a search for the highest rate that keeps the limits, without limits.
pub fn check_limits(rates: &[Rate], limits: LatencyLimits) -> Result<()> {
    if rates.contains(&Rate::Highest) && limits.is_empty() {
        let hint = this_command_with(&["--slo", "ttft=500ms,itl=50ms"]);
        bail!(Usage(format!("--request-rate highest: the limits of `--slo` are missing\nhint: {hint}")));
    }
    Ok(())
}
