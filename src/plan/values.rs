//! Refuses values of the command line that no selected engine accepts. If some of the engines accept a value, the others
//! become rows with the reason.

use anyhow::{Result, bail};

use super::Selection;
use crate::engines::load_values::LoadValue;
use crate::plan::dtype;
use crate::shell::Usage;
use crate::text::plural;

/// Refuses a device, a dtype or a load option that none of the selected engines accepts.
pub fn check(selection: &Selection) -> Result<()> {
    let devices = selection.devices.iter().map(LoadValue::Device);
    let dtypes = selection.dtypes.iter().flatten().map(|dtype| LoadValue::Dtype(dtype));
    let options = selection.options.keys().map(|name| LoadValue::Option(name));
    for value in devices.chain(dtypes).chain(options) {
        let candidates = &selection.candidates;
        if !candidates.iter().any(|it| it.load.accepts(value)) {
            let who = match candidates.as_slice() {
                [only] => format!("`{}` has", only.engine),
                _ => "none of the selected engines has the".into(),
            };
            let no = if candidates.len() == 1 { " no" } else { "" };
            bail!(Usage(format!("{who}{no} {value}\nhint: {}", hint(selection, value))));
        }
    }
    Ok(())
}

/// The same dtype by the name that the engines use, or else all values that they accept.
fn hint(selection: &Selection, value: LoadValue) -> String {
    let mut known: Vec<&str> = Vec::new();
    let lists = selection.candidates.iter().filter_map(|candidate| candidate.load.listed(value));
    for name in lists.flatten().map(String::as_str) {
        if !known.contains(&name) {
            known.push(name);
        }
    }
    if let LoadValue::Dtype(wanted) = value
        && let Some(same) = known.iter().find(|name| dtype::is_same(name, wanted))
    {
        return format!("--dtype {same}");
    }
    let known: Vec<_> = known.into_iter().map(|name| format!("`{name}`")).collect();
    match known.as_slice() {
        [] => "leave out `--set`: there are no load options".into(),
        known => format!("there are {}", known.join(", ")),
    }
}

/// Refuses more threads than the processors that this program may use: they would only wait for each other.
pub fn check_threads(threads: &[u32], processors: u32) -> Result<()> {
    if let Some(threads) = threads.iter().find(|&&threads| threads > processors) {
        let here = plural(processors, "processor");
        bail!(Usage(format!(
            "--threads {threads}: this program can use {here}\nhint: --threads {processors}"
        )));
    }
    Ok(())
}
