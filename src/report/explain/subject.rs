//! The subject of an explanation: the engines and cases that words name.

use super::context::command;
use super::terms;
use crate::plan::Role;
use crate::report::run_data::RunData;
use crate::shell::similar_name;
use crate::text::line;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    /// The names as the record has them.
    pub name: String,
    /// Indices of configurations; empty where only cases are named.
    pub configurations: Vec<usize>,
    /// Labels of workloads; empty where only engines are named.
    pub workloads: Vec<String>,
}

/// The subject with this name: an engine, a case, or an engine and a case in either order.
pub fn find(data: &RunData, name: &str) -> Result<Subject, String> {
    let name = normalized(name);
    let words: Vec<&str> = name.split(' ').collect();
    let whole = (engines(data, &name), workloads(data, &name));
    let splits = (1..words.len()).flat_map(|at| {
        let (first, second) = (words[..at].join(" "), words[at..].join(" "));
        [(engines(data, &first), workloads(data, &second)), (engines(data, &second), workloads(data, &first))]
    });
    let both =
        |(engines, workloads): &(Vec<usize>, Vec<String>)| !engines.is_empty() && !workloads.is_empty();
    let (configurations, workloads) = match whole {
        (engines, _) if !engines.is_empty() => (engines, Vec::new()),
        (_, workloads) if !workloads.is_empty() => (Vec::new(), workloads),
        _ => splits.into_iter().find(both).ok_or_else(|| unknown(data, &name))?,
    };
    let labels: Vec<String> =
        configurations.iter().map(|&index| format!("`{}`", data.engines[index].label)).collect();
    let names = [labels, workloads.iter().map(|label| format!("`{label}`")).collect()];
    let names: Vec<String> = names.iter().filter(|it| !it.is_empty()).map(|it| it.join(", ")).collect();
    Ok(Subject { name: names.join(" in "), configurations, workloads })
}

/// The name in lower case, without backticks, with one space between words.
fn normalized(name: &str) -> String {
    let text = line(name).replace('`', "").to_lowercase();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The configurations with this name: the one with this label, or else the rows with this name and dtype, or else all rows of
/// this engine or preset.
fn engines(data: &RunData, name: &str) -> Vec<usize> {
    let all = || data.engines.iter().enumerate();
    let with = |names: &dyn Fn(usize) -> Vec<String>| -> Vec<usize> {
        all()
            .map(|(index, _)| index)
            .filter(|&it| names(it).iter().any(|it| normalized(it) == name))
            .collect()
    };
    let exact = with(&|index| vec![data.engines[index].label.clone()]);
    if !exact.is_empty() {
        return exact;
    }
    // A table may show the dtype with the name.
    let with_dtype = with(&|index| {
        let engine = &data.engines[index];
        let dtype = engine.dtype.iter().flat_map(|dtype| [dtype.to_string(), dtype.weights.clone()]);
        dtype
            .flat_map(|dtype| [&engine.label, &engine.name].map(|name| format!("{name} ({dtype})")))
            .collect()
    });
    let rows =
        |found: Vec<usize>| -> Vec<usize> { found.into_iter().filter(|&it| data.is_row(it)).collect() };
    if !with_dtype.is_empty() {
        return rows(with_dtype);
    }
    rows(with(&|index| vec![data.engines[index].name.clone(), data.engines[index].engine.clone()]))
}

/// The workload with this label, or all workloads of the scenario with this name.
fn workloads(data: &RunData, name: &str) -> Vec<String> {
    let all = data.workloads();
    let with = |is_named: &dyn Fn(&str, &str) -> bool| -> Vec<String> {
        let found = all.iter().filter(|it| is_named(&it.workload, &it.scenario));
        found.map(|it| it.workload.clone()).collect()
    };
    let exact = with(&|label, _| normalized(label) == name);
    if exact.is_empty() { with(&|_, scenario| normalized(scenario) == name) } else { exact }
}

/// The error for an unknown name, with the names of the record and the nearest one.
fn unknown(data: &RunData, name: &str) -> String {
    let rows = || data.engines.iter().enumerate().filter(|(index, _)| data.is_row(*index));
    let engines: Vec<String> = rows().map(|(_, engine)| engine.label.clone()).collect();
    let cases: Vec<String> = data.workloads().into_iter().map(|it| it.workload).collect();
    let known: Vec<&str> = engines.iter().chain(&cases).map(String::as_str).collect();
    let nearest = similar_name(name, &known).map(String::from).or_else(|| terms::similar(name));
    let list = |names: &[String]| {
        let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
        if names.is_empty() { "none".to_string() } else { names.join(", ") }
    };
    let example = nearest.or_else(|| engines.first().cloned());
    let hint = example.map_or_else(String::new, |name| format!("\nhint: {}", command(&[&name])));
    format!(
        "no engine or case `{name}` in the record {}, and no term; its engines: {}; its cases: {}{hint}",
        line(&data.record.header.id),
        list(&engines),
        list(&cases)
    )
}

/// The purpose of a configuration without a row of its own; `None` for a row.
pub fn purpose(data: &RunData, configuration: usize) -> Option<String> {
    let label = |index: usize| format!("`{}`", data.engines[index].label);
    Some(match data.plan.configurations[configuration].role? {
        Role::Twin { of } => format!(
            "It is a second copy of {}. The difference between the two is noise, because both run the same program.",
            label(of)
        ),
        Role::Baseline { of } => {
            format!("It is the program of the baseline. It was measured again, in turn with {}.", label(of))
        }
        Role::NullEngine => {
            "It is an engine that computes nothing. It was measured in turn with the queries of the other engines, and its time is \
             the column `null engine`."
                .into()
        }
        Role::Verifier => "It only verifies the outputs of the other engines. It is not measured.".into(),
    })
}
