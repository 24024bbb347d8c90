//! `orchestrate model list`: the models on this machine, and those that `synth` can make. `orchestrate model cache`: the format
//! conversions of runs.

use std::fmt::Write as _;
use std::path::Path;
use std::time::SystemTime;

use anyhow::Result;
use clap::Args;
use model_files::conversions::{self, Conversion};
use model_files::hub::Cache;
use model_files::{ModelFolder, SHAPES, Shape, embedded, size};
use tabled::builder::Builder;
use tabled::settings::object::{Cell, Columns};
use tabled::settings::style::{HorizontalLine, Style};
use tabled::settings::{Alignment, Padding, Span};

use crate::cli::exit_code::DONE;
use crate::commands::output;
use crate::shell::{Usage, parse_bytes, this_command_with_value};
use crate::text;

pub fn list() -> Result<u8> {
    let mut text = table(&models()?);
    let shapes = SHAPES.iter().map(|(name, _)| Shape::named(name)).collect::<Result<Vec<_>>>()?;
    let shapes: Vec<_> = shapes.iter().map(|shape| (shape.name.as_str(), shape.about.as_str())).collect();
    write!(text, "\n{}", describe_shapes(&shapes))?;
    output::print_text(&text).map(|()| DONE)
}

/// The text about the shapes of `synth`, each with its description. Empty without shapes.
fn describe_shapes(shapes: &[(&str, &str)]) -> String {
    if shapes.is_empty() {
        return String::new();
    }
    let name_width = shapes.iter().map(|(name, _)| text::width(name)).max().unwrap_or(0);
    let lines = shapes.iter().flat_map(|(shape, summary)| {
        text::wrap(
            &format!("{shape:name_width$}  {summary}"),
            WIDTH - COLUMN_GAP,
            &" ".repeat(name_width + COLUMN_GAP),
        )
    });
    let lines: Vec<_> = lines.map(|line| format!("  {line}")).collect();
    format!(
        "shapes of models with random weights (`orchestrate model synth NAME --out DIR`):\n{}\n",
        lines.join("\n")
    )
}

struct Model {
    name: String,
    bytes: u64,
    /// The model's facts, or the reason why the model cannot be opened.
    facts: Result<Facts, String>,
}

struct Facts {
    format: &'static str,
    architecture: String,
    parameters: u64,
}

fn models() -> Result<Vec<Model>> {
    let embedded_folder = embedded::folder()?;
    let opened = ModelFolder::open(&embedded_folder);
    let bytes = opened.as_ref().map_or(0, ModelFolder::weights_bytes);
    let mut models =
        vec![Model { name: embedded::NAME.into(), bytes, facts: facts(opened, &embedded_folder) }];
    for snapshot in Cache::from_environment()?.snapshots() {
        for (name, path, bytes) in snapshot.models() {
            let facts = facts(ModelFolder::open(path), &snapshot.folder);
            models.push(Model { name: text::line(&name), bytes, facts });
        }
    }
    Ok(models)
}

fn facts(opened: Result<ModelFolder>, folder: &Path) -> Result<Facts, String> {
    let model = opened.map_err(|error| reason(&error, folder))?;
    let architecture = text::shorten(&text::line(&model.config.architecture), MAX_ARCHITECTURE_WIDTH);
    Ok(Facts { format: model.format.as_str(), parameters: model.parameters(), architecture })
}

/// The error without its hint and without the model's folder. The row has the model's name, so the folder is not needed.
fn reason(error: &anyhow::Error, folder: &Path) -> String {
    let (text, folder) = (format!("{error:#}"), folder.display().to_string());
    let text = text.replace(&format!("model `{folder}`: "), "").replace(&format!("{folder}/"), "");
    let lines: Vec<_> = text.lines().filter(|line| !line.starts_with("hint: ")).collect();
    text::line(&lines.join(" "))
}

/// The narrowest usual terminal.
const WIDTH: usize = 80;
/// The width that the other columns leave. A longer name has a line of its own.
const MAX_NAME_WIDTH: usize = 32;
const MAX_ARCHITECTURE_WIDTH: usize = 12;
/// The space between two columns.
const COLUMN_GAP: usize = 2;
/// The indent of the reason why a model is broken.
const REASON_INDENT: &str = "    ";
const TITLES: [&str; 5] = ["model", "format", "architecture", "parameters", "on disk"];

fn table(models: &[Model]) -> String {
    let mut builder = Builder::default();
    builder.push_record(TITLES);
    // The rows with only one cell, which is as wide as the table.
    let mut spanning = Vec::new();
    let mut push_spanning = |builder: &mut Builder, text: String| {
        spanning.push(builder.count_records());
        builder.push_record([text, String::new(), String::new(), String::new(), String::new()]);
    };
    for model in models {
        let mut name = model.name.clone();
        if text::width(&name) > MAX_NAME_WIDTH {
            push_spanning(&mut builder, std::mem::take(&mut name));
        }
        let bytes = size(model.bytes);
        match &model.facts {
            Ok(Facts { format, architecture, parameters }) => {
                let parameters = short_number(*parameters);
                builder.push_record([name, (*format).into(), architecture.clone(), parameters, bytes]);
            }
            Err(why) => {
                builder.push_record([name, "broken".into(), String::new(), String::new(), bytes]);
                for line in text::wrap(why, WIDTH - REASON_INDENT.len(), "") {
                    push_spanning(&mut builder, format!("{REASON_INDENT}{line}"));
                }
            }
        }
    }
    let mut table = builder.build();
    table.with(Style::empty().horizontals([(1, HorizontalLine::new('─'))]));
    table.with(Padding::new(0, COLUMN_GAP, 0, 0));
    table.modify(Columns::new(TITLES.len() - 1..), Padding::zero());
    table.modify(Columns::new(TITLES.len() - 2..), Alignment::right());
    for row in spanning {
        let cell = Cell::new(row, 0);
        table.modify(cell, Span::column(TITLES.len() as isize));
        table.modify(cell, Alignment::left()).modify(cell, Padding::zero());
    }
    table.to_string().lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

/// A number in short form: `1.24 B`, `494 M`.
fn short_number(number: u64) -> String {
    let units = [(1_000_000_000, "B"), (1_000_000, "M"), (1000, "k")];
    match units.into_iter().find(|&(unit, _)| number >= unit) {
        Some((unit, name)) => {
            let value = number as f64 / unit as f64;
            let digits = [10.0, 100.0].into_iter().filter(|limit| value < *limit).count();
            format!("{value:.digits$} {name}")
        }
        None => number.to_string(),
    }
}

#[derive(Debug, Args)]
#[group(multiple = false)]
pub struct CacheArgs {
    /// List the stored conversions (default)
    #[arg(long)]
    pub list: bool,
    /// Set the limit of the cache (`20GB`); the least recently used conversions are removed first
    #[arg(long, value_name = "SIZE")]
    pub limit: Option<String>,
    /// Remove all stored conversions
    #[arg(long)]
    pub clear: bool,
}

pub fn cache(arguments: &CacheArgs) -> Result<u8> {
    let mut text = String::new();
    if arguments.clear {
        writeln!(text, "removed {}", size(conversions::clear()?))?;
    } else if let Some(limit) = &arguments.limit {
        let hint = || this_command_with_value("--limit", None, "20GB");
        let invalid = || Usage(format!("invalid size `{limit}`\nhint: {}", hint()));
        let limit = parse_bytes(limit).ok_or_else(invalid)?;
        let removed = conversions::set_limit(limit)?;
        writeln!(text, "the limit of conversions is {}; removed {}", size(limit), size(removed))?;
    } else {
        write_conversions(&mut text)?;
    }
    output::print_text(&text).map(|()| DONE)
}

fn write_conversions(text: &mut String) -> Result<()> {
    let (stored, limit) = (conversions::list()?, conversions::limit()?);
    for Conversion { model, format, dtype, bytes, used, folder } in &stored {
        let age = SystemTime::now().duration_since(*used).unwrap_or_default();
        let used = match age.as_secs() / 3600 {
            0 => "less than an hour ago".into(),
            hours @ 1..48 => format!("{hours} h ago"),
            hours => format!("{} days ago", hours / 24),
        };
        writeln!(text, "{model} as {format} {dtype}: {}, used {used}", size(*bytes))?;
        writeln!(text, "    {}", folder.display())?;
    }
    let bytes = size(stored.iter().map(|conversion| conversion.bytes).sum());
    writeln!(text, "{bytes} in {}, limit {}", text::plural(stored.len(), "conversion"), size(limit))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_fits_eighty_columns_and_a_broken_model_has_its_reason() {
        let model = |name: &str, parameters| Model {
            name: name.into(),
            bytes: 16_060_000_000,
            facts: Ok(Facts { format: "safetensors", architecture: "llama".into(), parameters }),
        };
        let why = "`model.safetensors`: the header is longer than the file, which was cut when it was copied from elsewhere";
        let broken = Model { name: "o/broken".into(), bytes: 999, facts: Err(why.into()) };
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
        assert_eq!(describe_shapes(&[]), "");
        let shapes = describe_shapes(&[("gpt2", "124 M parameters"), ("llama-3-8b", "8 B parameters")]);
        assert!(
            shapes.ends_with("  gpt2        124 M parameters\n  llama-3-8b  8 B parameters\n"),
            "{shapes}"
        );
    }
}
