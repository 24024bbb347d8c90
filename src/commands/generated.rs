//! `orchestrate completions` and `orchestrate man`: files for the shell and for `man`, from the definition of the command line.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::builder::PossibleValuesParser;
use clap::{Arg, Args, Command as Definition};
use clap_complete::Shell;
use clap_mangen::Man;
use model_files::SHAPES;

use super::model::DTYPES;
use super::output;
use crate::analysis::metric::METRICS;
use crate::engines::manifest::DEFAULT_PRESET;
use crate::engines::registry::Registry;
use crate::machine::CPU;
use crate::plan::selection::scenario_names;
use crate::shell::choice_parser;

#[derive(Debug, Args)]
#[command(after_help = COMPLETIONS_HELP)]
pub struct CompletionsArgs {
    #[arg(value_parser = choice_parser(SHELLS))]
    pub shell: Shell,
}

#[derive(Debug, Args)]
pub struct ManArgs {
    /// Write a page for each subcommand into this folder; default: print the page of the program
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}

const SHELLS: [(&str, Shell); 3] = [("bash", Shell::Bash), ("zsh", Shell::Zsh), ("fish", Shell::Fish)];

const PROGRAM: &str = "orchestrate";

const COMPLETIONS_HELP: &str = "\
To install it:
  orchestrate completions bash > ~/.local/share/bash-completion/completions/orchestrate
  orchestrate completions zsh > ~/.zfunc/_orchestrate    (a folder of $fpath)
  orchestrate completions fish > ~/.config/fish/completions/orchestrate.fish
The script has the present names of engines, presets, scenarios and shapes: make it again after an update.";

/// Bash splits words at `:` and gives a list that is separated by commas as one word. These lines complete each name of a list,
/// and the presets of an engine once its `:` is typed.
const BASH_NAMES: &str = r#"
_orchestrate_names() {
    local line=${COMP_LINE:0:COMP_POINT} COMP_WORDS COMP_CWORD cur before list=""
    read -ra COMP_WORDS <<<"$line"
    [[ $line == *[[:space:]] ]] && COMP_WORDS+=("")
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    cur=${COMP_WORDS[COMP_CWORD]}
    # Bash replaces only `$2`, the end of the word.
    before=${cur%"$2"}
    [[ $cur == *,* ]] && list=${cur%,*},
    _orchestrate "$1" "${cur#"$list"}" "${COMP_WORDS[COMP_CWORD-1]}"
    local found=("${COMPREPLY[@]}") name
    COMPREPLY=()
    for name in "${found[@]}"; do
        [[ $name == *:* && $cur != *:* && $name != */* ]] && continue
        name=$list$name
        COMPREPLY+=("${name#"$before"}")
    done
}
complete -F _orchestrate_names -o nosort -o bashdefault -o default orchestrate
"#;

pub fn completions(arguments: &CompletionsArgs, command: Definition) -> Result<u8> {
    let registry = Registry::open()?;
    let mut command = with_known_values(without_hidden(command), &registry);
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut command, PROGRAM, &mut script);
    if arguments.shell == Shell::Bash {
        script.extend(BASH_NAMES.as_bytes());
    }
    output::succeed(script)
}

/// The command without hidden subcommands, which only this program itself starts.
fn without_hidden(command: Definition) -> Definition {
    let arguments: Vec<Arg> = command.get_arguments().cloned().collect();
    let shown: Vec<Definition> = command.get_subcommands().filter(|it| !it.is_hide_set()).cloned().collect();
    let about = command.get_about().cloned().unwrap_or_default();
    Definition::new(PROGRAM).about(about).args(arguments).subcommands(shown)
}

/// The command with the known names as values of its arguments. A run accepts paths too, so its own parsers have no such list.
fn with_known_values(command: Definition, registry: &Registry) -> Definition {
    let command = command.mut_subcommands(|it| with_known_values(it, registry));
    command.mut_args(|argument| {
        let value_name = argument.get_value_names().and_then(|names| names.first().map(|it| it.to_string()));
        match value_name.and_then(|name| known_values(&name, registry)) {
            // The process ends soon, so these few names are never freed.
            Some(values) => {
                let values: Vec<&'static str> = values.into_iter().map(|value| &*value.leak()).collect();
                argument.value_parser(PossibleValuesParser::new(values))
            }
            None => argument,
        }
    })
}

/// The known values of the arguments that the help shows with this value name.
fn known_values(value_name: &str, registry: &Registry) -> Option<Vec<String>> {
    let names = || registry.engines.iter().map(|engine| engine.manifest.name.clone());
    let presets = registry.engines.iter().flat_map(|engine| {
        let named = engine.manifest.presets.keys().filter(|preset| *preset != DEFAULT_PRESET);
        named.map(move |preset| format!("{}:{preset}", engine.manifest.name))
    });
    let values = match value_name {
        "ENGINE" => names().collect(),
        "NAME|PATH" => names().chain(presets).collect(),
        "SCENARIO" => scenario_names(registry).map(String::from).collect(),
        "METRIC" => METRICS.iter().map(|metric| metric.name().to_string()).collect(),
        "SHAPE" => SHAPES.iter().map(|(name, _)| name.to_string()).collect(),
        "DTYPE" => DTYPES.map(String::from).to_vec(),
        "DEVICE" => {
            let families = registry.engines.iter().flat_map(|engine| engine.manifest.devices.keys().cloned());
            let mut devices: Vec<String> = families.chain([CPU.to_string()]).collect();
            devices.sort();
            devices.dedup();
            devices
        }
        _ => return None,
    };
    Some(values)
}

pub fn man(arguments: &ManArgs, command: Definition) -> Result<u8> {
    let command = command.disable_help_subcommand(true);
    let Some(folder) = &arguments.out else {
        let mut page = Vec::new();
        Man::new(command).render(&mut page)?;
        return output::succeed(page);
    };
    output::create_folder(folder)?;
    let written = clap_mangen::generate_to(command, folder);
    written.with_context(|| format!("cannot write the pages to `{}`", folder.display()))?;
    output::succeed(format!("{}\n", folder.join("orchestrate.1").display()))
}
