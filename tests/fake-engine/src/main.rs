//! An engine with scripted facts and scripted faults, for the orchestrator's tests. It is written only from
//! `protocol/README.md`. It does not use the kit or the crate `protocol`, so that it shares no mistake with them.
//!
//! Settings come from `FAKE_ENGINE='{"fault":"stray_lines"}'` in the environment, then from `--fault NAME` or `--SETTING VALUE`
//! on the command line, then from the options of `load`. A later source replaces an earlier one. `--list` prints all
//! settings and faults.

mod answer;
mod conversation;
mod effects;
mod false_report;
mod fault;
mod generate;
mod kept_answers;
mod kept_prompts;
mod rounding;
mod script;
mod text;

use std::process::ExitCode;

use serde_json::{Map, Value};

use fault::{eprint, print};
use script::Script;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|argument| argument == "--list") {
        list();
        return ExitCode::SUCCESS;
    }
    let script = match initial_script(&arguments) {
        Ok(script) => script,
        Err(message) => {
            eprint(&format!("fake: {message}; `--list` prints all settings and faults\n"));
            return ExitCode::from(2);
        }
    };
    fault::before_hello(&script);
    fault::leave_grandchild(&script);
    fault::leave_daemon(&script);
    conversation::answer_requests(script);
    ExitCode::SUCCESS
}

fn list() {
    for (name, default, meaning) in script::SETTINGS {
        print(&format!("{name:<26} {default:<9} {meaning}\n"));
    }
    for (name, effect) in fault::FAULTS {
        print(&format!("--fault {name:<26} {effect}\n"));
    }
}

fn initial_script(arguments: &[String]) -> Result<Script, String> {
    let mut script = Script::default();
    if let Ok(text) = std::env::var("FAKE_ENGINE") {
        let settings: Map<String, Value> =
            serde_json::from_str(&text).map_err(|error| format!("`FAKE_ENGINE`: {error}"))?;
        script.apply(&settings)?;
    }
    for pair in arguments.chunks(2) {
        let [name, value] = pair else { return Err(format!("`{}` needs a value", pair[0])) };
        let name = name.strip_prefix("--").ok_or_else(|| format!("unknown argument `{name}`"))?;
        let name = name.replace('-', "_");
        let is_text =
            script::SETTINGS.iter().any(|(known, default, _)| *known == name && default.starts_with('"'));
        let parsed = serde_json::from_str(value).ok().filter(|_| !is_text);
        script.apply(&Map::from_iter([(name, parsed.unwrap_or_else(|| value.as_str().into()))]))?;
    }
    Ok(script)
}
