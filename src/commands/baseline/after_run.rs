//! After a run: prints its judgement, and saves the run as a baseline. The record is already written, so no error here can
//! lose the run.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::Result;

use super::accept::{NotABaseline, accept};
use super::description::{Age, Baseline, Row};
use super::program::{self, Program};
use super::store::{self, check_name};
use crate::analysis::compare::Judgement;
use crate::cli::RunArgs;
use crate::cli::exit_code::{DONE, ERROR, INCONCLUSIVE, INTERRUPTED, USAGE, most_severe, of_conclusion};
use crate::commands::output;
use crate::record::{Recorder, RunRecord};
use crate::report::{self, Screen};
use crate::shell::{pasteable, this_command_without, this_program};
use crate::text::plural;

/// Saves the run as the baseline that `--save-baseline` names. Prints the judgement on stderr if people do not see it on
/// stdout. Returns the final exit status; `code` is that of the run itself.
pub fn conclude(
    arguments: &RunArgs,
    judgement: Option<Result<Judgement>>,
    recorder: &Recorder,
    code: u8,
) -> Result<u8> {
    if code == INTERRUPTED {
        note_interrupted(arguments, &recorder.path);
        return Ok(code);
    }
    let compared = judgement.map_or(Ok(DONE), |judgement| print_judgement(arguments, judgement))?;
    let saved = match &arguments.baseline.save_baseline {
        Some(name) if compared != DONE && arguments.baseline.baseline.as_ref() == Some(name) => {
            // The run did not pass against this baseline, so the user needs the baseline to see why.
            let hint = this_command_without(&[("--baseline", true), ("--rerun-baseline", false)], &[]);
            note(&format!("baseline `{name}` is unchanged: this run did not pass against it\nhint: {hint}"));
            DONE
        }
        Some(name) => try_save(name, recorder),
        None => DONE,
    };
    Ok(most_severe([code, compared, saved]))
}

fn print_judgement(arguments: &RunArgs, judgement: Result<Judgement>) -> Result<u8> {
    let judgement = match judgement {
        Ok(judgement) => judgement,
        // The run itself is shown and recorded, so this error concerns only the comparison.
        Err(refused) => {
            output::print_error(&refused);
            return Ok(USAGE);
        }
    };
    if let Some(why) = hidden_on_stdout(arguments) {
        // Programs read stdout, so the table for people goes to stderr.
        let content = report::JudgementContent { judgement: &judgement, full: arguments.view.full };
        let screen = Screen { program: Some(this_program()), ..Screen::default() };
        let table = report::FORMATS[0].render(&content, screen).unwrap_or_default();
        let table = String::from_utf8_lossy(&table);
        note(&format!("the judgement, as a table ({why}):\n\n{}", table.trim_end()));
    }
    Ok(of_conclusion(judgement.conclusion(arguments.judge.fail_on)))
}

/// Returns the reason why people do not see the judgement on stdout; `None` where they do.
fn hidden_on_stdout(arguments: &RunArgs) -> Option<String> {
    let format = arguments.view.format;
    let to_stdout = arguments.json.as_deref() == Some(Path::new("-"));
    match (to_stdout, format.has_lines()) {
        (false, _) if format.is_for_people() => None,
        (false, true) => Some(format!("--format {} contains only the run", format.name)),
        _ => Some("the JSON on stdout contains it too".into()),
    }
}

/// Saves the run, or prints the error. Returns the exit status.
fn try_save(name: &str, recorder: &Recorder) -> u8 {
    let error = match save(name, &recorder.path, &recorder.record) {
        Ok(saved) => {
            saved.lines().iter().for_each(|line| note(line));
            return DONE;
        }
        Err(error) => error,
    };
    let code = if error.is::<NotABaseline>() { INCONCLUSIVE } else { ERROR };
    let record = match recorder.record.is_refused() {
        true => "nothing was measured".into(),
        false => format!("the run is in `{}`", recorder.path.display()),
    };
    output::print_error(&error.context(format!("baseline `{name}` is not saved, and {record}")));
    code
}

#[derive(Debug)]
struct Saved {
    baseline: Baseline,
    folder: PathBuf,
    /// The age of the baseline that the saved one replaced.
    replaced: Option<Age>,
    /// Warnings about cases that are not in the baseline, and about programs without a full copy.
    warnings: Vec<String>,
}

impl Saved {
    /// The path of the baseline, and warnings for the user.
    fn lines(&self) -> Vec<String> {
        let (name, folder) = (&self.baseline.name, self.folder.display());
        let rows = plural(self.baseline.configurations.len(), "row");
        let replaced = self.replaced.map(|age| format!(", replacing one that was {age}")).unwrap_or_default();
        let saved = format!("baseline `{name}` is saved{replaced}: {rows}, in `{folder}`");
        let warnings = self.warnings.iter().map(|warning| format!("warning: {warning}"));
        std::iter::once(saved).chain(warnings).collect()
    }
}

/// Saves a run under a name. The error is a `NotABaseline` if the run cannot become a baseline. The run's own record
/// stays as it is.
fn save(name: &str, record_path: &Path, record: &RunRecord) -> Result<Saved> {
    check_name(name)?;
    let accepted = accept(record)?;
    let mut staged = store::Staged::new(name)?;
    let header = &record.header;
    let mut baseline = Baseline::of(name, header);
    let mut programs: BTreeMap<_, Program> = BTreeMap::new();
    let mut warnings = accepted.left_out;
    for row in accepted.rows {
        let configuration = &header.plan.configurations[row];
        // Presets of one engine share its program.
        let started = (configuration.engine.as_str(), configuration.command.first());
        let store = || program::store(&mut staged, configuration, &header.started);
        let program = programs.entry(started).or_insert_with(store).clone();
        warnings.extend(program.warnings(&configuration.label));
        let (label, engine) = (configuration.label.clone(), configuration.engine.clone());
        baseline.configurations.push(Row { label, engine, program });
    }
    staged.copy_record(record_path)?;
    staged.write_description(&baseline)?;
    let before = Baseline::read(name).ok();
    let folder = staged.commit()?;
    let replaced = before.map(|before| before.age(SystemTime::now()));
    Ok(Saved { baseline, folder, replaced, warnings })
}

fn note_interrupted(arguments: &RunArgs, record: &Path) {
    if let Some(name) = &arguments.baseline.save_baseline {
        note(&format!("baseline `{name}` is not saved: the run was interrupted"));
    }
    if let Some(name) = arguments.baseline.baseline.as_ref().filter(|_| !arguments.baseline.rerun_baseline) {
        let command = format!("orchestrate compare {name} {}", pasteable(&[record.display().to_string()]));
        note(&format!("not compared with baseline `{name}`: the run was interrupted\nhint: {command}"));
    }
}

fn note(line: &str) {
    output::print_notice(&format!("{line}\n"));
}
