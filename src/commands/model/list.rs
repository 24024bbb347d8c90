//! `orchestrate model list`: the models on this machine, and those that `synth` can make.

use std::path::Path;

use anyhow::Result;
use model_files::hub::Cache;
use model_files::{ModelFolder, SHAPES, Shape, embedded, size};
use tabled::builder::Builder;
use tabled::settings::object::{Cell, Columns};
use tabled::settings::style::{HorizontalLine, Style};
use tabled::settings::{Alignment, Padding, Span};

use crate::commands::output;
use crate::text;

pub fn list() -> Result<u8> {
    let mut text = table(&here()?);
    let shapes = SHAPES.iter().map(|(name, _)| Shape::named(name)).collect::<Result<Vec<_>>>()?;
    let shapes: Vec<_> = shapes.iter().map(|shape| (shape.name.as_str(), shape.about.as_str())).collect();
    text.push('\n');
    text.push_str(&can_be_made(&shapes));
    output::succeed(text)
}

/// The shapes of `synth` by name, each with its description. Empty without shapes.
pub fn can_be_made(shapes: &[(&str, &str)]) -> String {
    if shapes.is_empty() {
        return String::new();
    }
    let name = shapes.iter().map(|(name, _)| text::width(name)).max().unwrap_or(0);
    let lines = shapes.iter().flat_map(|(shape, summary)| {
        text::wrap(&format!("{shape:name$}  {summary}"), WIDTH - GAP, &" ".repeat(name + GAP))
    });
    let lines: Vec<_> = lines.map(|line| format!("  {line}")).collect();
    format!("with random weights (`orchestrate model synth NAME --out DIR`):\n{}\n", lines.join("\n"))
}

/// A model on this machine.
struct Here {
    name: String,
    bytes: u64,
    /// Its facts, or the reason why it cannot be opened.
    what: Result<What, String>,
}

/// The facts in a model's files.
struct What {
    format: &'static str,
    architecture: String,
    parameters: u64,
}

fn here() -> Result<Vec<Here>> {
    let small = embedded::folder()?;
    let opened = ModelFolder::open(&small);
    let bytes = opened.as_ref().map_or(0, ModelFolder::weights_bytes);
    let mut models = vec![Here { name: embedded::NAME.into(), bytes, what: what(opened, &small) }];
    for snapshot in Cache::from_environment()?.snapshots() {
        for (name, path, bytes) in snapshot.models() {
            let what = what(ModelFolder::open(path), &snapshot.folder);
            models.push(Here { name: text::line(&name), bytes, what });
        }
    }
    Ok(models)
}

fn what(opened: Result<ModelFolder>, folder: &Path) -> Result<What, String> {
    let model = opened.map_err(|error| reason(&error, folder))?;
    let architecture = text::shorten(&text::line(&model.config.architecture), ARCHITECTURE);
    Ok(What { format: model.format.as_str(), parameters: model.parameters(), architecture })
}

/// The error without its hint, which is for a user who names the model, and without the path, which the row's name stands for.
fn reason(error: &anyhow::Error, folder: &Path) -> String {
    let (text, folder) = (format!("{error:#}"), folder.display().to_string());
    let text = text.replace(&format!("model `{folder}`: "), "").replace(&format!("{folder}/"), "");
    let said: Vec<_> = text.lines().filter(|line| !line.starts_with("hint: ")).collect();
    text::line(&said.join(" "))
}

/// The narrowest usual terminal.
const WIDTH: usize = 80;
/// The width that the other columns leave. A longer name has a line of its own.
const NAME: usize = 32;
const ARCHITECTURE: usize = 12;
const GAP: usize = 2;
/// The indent of the reason why a model is broken.
const REASON: &str = "    ";
const TITLES: [&str; 5] = ["model", "format", "architecture", "parameters", "on disk"];

fn table(models: &[Here]) -> String {
    let mut builder = Builder::default();
    builder.push_record(TITLES);
    // The records that have one cell, as wide as the table.
    let mut whole = Vec::new();
    let mut push_whole = |builder: &mut Builder, text: String| {
        whole.push(builder.count_records());
        builder.push_record([text, String::new(), String::new(), String::new(), String::new()]);
    };
    for model in models {
        let mut name = model.name.clone();
        if text::width(&name) > NAME {
            push_whole(&mut builder, std::mem::take(&mut name));
        }
        let bytes = size(model.bytes);
        match &model.what {
            Ok(What { format, architecture, parameters }) => {
                let parameters = count(*parameters);
                builder.push_record([name, (*format).into(), architecture.clone(), parameters, bytes]);
            }
            Err(why) => {
                builder.push_record([name, "broken".into(), String::new(), String::new(), bytes]);
                for line in text::wrap(why, WIDTH - REASON.len(), "") {
                    push_whole(&mut builder, format!("{REASON}{line}"));
                }
            }
        }
    }
    let mut table = builder.build();
    table.with(Style::empty().horizontals([(1, HorizontalLine::new('─'))]));
    table.with(Padding::new(0, GAP, 0, 0));
    table.modify(Columns::new(TITLES.len() - 1..), Padding::zero());
    table.modify(Columns::new(TITLES.len() - 2..), Alignment::right());
    for row in whole {
        let cell = Cell::new(row, 0);
        table.modify(cell, Span::column(TITLES.len() as isize));
        table.modify(cell, Alignment::left()).modify(cell, Padding::zero());
    }
    table.to_string().lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

/// `1.24 B`, `494 M`.
fn count(number: u64) -> String {
    let units = [(1_000_000_000, "B"), (1_000_000, "M"), (1000, "k")];
    match units.into_iter().find(|&(unit, _)| number >= unit) {
        Some((unit, name)) => {
            let figures = number as f64 / unit as f64;
            let places = if figures < 10.0 {
                2
            } else if figures < 100.0 {
                1
            } else {
                0
            };
            format!("{figures:.places$} {name}")
        }
        None => number.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_fits_eighty_columns_and_a_broken_model_has_its_reason() {
        let model = |name: &str, parameters| Here {
            name: name.into(),
            bytes: 16_060_000_000,
            what: Ok(What { format: "safetensors", architecture: "llama".into(), parameters }),
        };
        let why = "`model.safetensors`: the header is longer than the file, which was cut when it was copied from elsewhere";
        let broken = Here { name: "o/broken".into(), bytes: 999, what: Err(why.into()) };
        let long = "someones-organisation/a-model-with-a-long-name-7B-instruct@v1.0";
        let table = table(&[
            model("meta-llama/Llama-3.2-1B-Instruct", 1_235_814_400),
            broken,
            model(long, 494_032_768),
        ]);
        let expected = "\
model                             format       architecture  parameters  on disk
────────────────────────────────────────────────────────────────────────────────
meta-llama/Llama-3.2-1B-Instruct  safetensors  llama             1.24 B  16.1 GB
o/broken                          broken                                   999 B
    `model.safetensors`: the header is longer than the file, which was cut when
    it was copied from elsewhere
someones-organisation/a-model-with-a-long-name-7B-instruct@v1.0
                                  safetensors  llama              494 M  16.1 GB
";
        assert!(table == expected, "{table}");
    }

    #[test]
    fn shapes_are_aligned_and_an_empty_list_has_no_heading() {
        assert_eq!(can_be_made(&[]), "");
        let shapes = can_be_made(&[("gpt2", "124 M parameters"), ("llama-3-8b", "8 B parameters")]);
        assert!(
            shapes.ends_with("  gpt2        124 M parameters\n  llama-3-8b  8 B parameters\n"),
            "{shapes}"
        );
    }
}
