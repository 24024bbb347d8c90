//! The step after a failure: the recorded hint, or else a command or an option that helps with failures of this kind.

use crate::plan::Configuration;
use crate::record::FailureKind;
use crate::report::rows::FailureSummary;
use crate::shell::pasteable;

/// A sentence that says why the hints help, and the hints, which can be pasted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NextStep {
    pub sentence: Option<String>,
    pub hints: Vec<String>,
}

impl NextStep {
    fn new(sentence: &str, hint: String) -> Self {
        Self { sentence: Some(sentence.into()), hints: vec![hint] }
    }
}

/// The step after this failure of a configuration. `None` if the engine refused a request that it must refuse.
pub fn after(failure: &FailureSummary, planned: &Configuration) -> Option<NextStep> {
    if failure.is_expected() {
        return None;
    }
    if let Some(hint) = &failure.hint {
        return Some(NextStep { sentence: None, hints: hint.lines().map(String::from).collect() });
    }
    let model = || format!("orchestrate model info {}", pasteable(std::slice::from_ref(&planned.model.path)));
    Some(match failure.kind {
        FailureKind::Unsupported => unsupported(failure, planned),
        FailureKind::Unavailable => NextStep::new(
            "This command lists what each engine needs on this machine.",
            "orchestrate engines".into(),
        ),
        FailureKind::NoTime => {
            NextStep::new("A larger budget measures more cases.", "measure again with `--budget 15m`".into())
        }
        FailureKind::Model => NextStep::new("This command reads the model without the engine.", model()),
        FailureKind::Context => {
            NextStep::new("This command shows how many tokens the model's context holds.", model())
        }
        FailureKind::OutOfMemory => NextStep::new(
            "This command shows how much memory the model needs at each context length.",
            model(),
        ),
        FailureKind::Device => {
            NextStep::new("This command shows the devices of this machine.", "orchestrate machine".into())
        }
        _ => NextStep::new(
            "This command runs the engine alone, and shows its messages and its stderr.",
            format!("{} --debug", planned.check_command()),
        ),
    })
}

/// The step after `no device `cpu`; it has `cuda``: the first value that the engine has. Other settings have no such list.
fn unsupported(failure: &FailureSummary, planned: &Configuration) -> NextStep {
    let first = failure.message.split_once("; it has `").and_then(|(_, list)| list.split_once('`'));
    let option = [("no device ", "--device"), ("no dtype ", "--dtype")]
        .into_iter()
        .find(|(start, _)| failure.message.starts_with(start));
    let Some(((value, _), (_, option))) = first.zip(option) else {
        return NextStep::new(
            "This command lists the presets of each engine. To leave this one out, name only the others with `-e`.",
            "orchestrate engines".into(),
        );
    };
    let place =
        if option == "--device" { format!("On a machine with `{value}`, this") } else { "This".into() };
    NextStep::new(
        &format!("{place} command measures it. To leave it out here, name only the other engines with `-e`."),
        format!("orchestrate -e {} {option} {}", planned.engine_argument(), pasteable(&[value.into()])),
    )
}
