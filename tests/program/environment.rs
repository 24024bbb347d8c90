//! The environment variables of engines: which of the user's variables an engine gets, and that no record has a secret.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::support::record::files;
use crate::support::{DECODE, Outcome, Scratch, fake_engine, finish};

/// Variables of the user, with their values.
const OF_USER: &[(&str, &str)] = &[
    ("CUDA_VISIBLE_DEVICES", "0"),
    ("HF_HOME", "/models"),
    ("HF_TOKEN", "hf_0123456789"),
    ("NVIDIA_API_KEY", "nvapi-0123456789"),
    ("SLURM_JOB_ID", "41"),
    ("SLURM_JWT", "jwt-0123456789"),
    ("AWS_SECRET_ACCESS_KEY", "aws-0123456789"),
    ("DATABASE_URL", "postgres://user:0123456789@host"),
    ("ORCHESTRATE_DTYPE", "f64"),
    ("SERVICE_MODE", "fast"),
    ("SERVICE_TOKEN", "service-0123456789"),
];

/// An engine that writes its environment to the file `environment` and to its stderr. It exits in a sample, so that the record
/// has its stderr.
fn engine(scratch: &Scratch) -> PathBuf {
    let file = scratch.join("environment");
    let text = format!(
        "[ -e '{0}' ] || env > '{0}'\nenv >&2\nexec '{1}' --fault exits_at_sample --at 2",
        file.display(),
        fake_engine().display()
    );
    scratch.script("reveals", &text)
}

fn run(scratch: &Scratch, command: &str, options: &[&str]) -> (Outcome, BTreeMap<String, String>) {
    let mut orchestrate = scratch.orchestrate();
    match command {
        "check" => orchestrate.arg("check").arg(engine(scratch)),
        _ => orchestrate
            .arg("-e")
            .arg(engine(scratch))
            .args(DECODE)
            .args(["--quick", "--results"])
            .arg(scratch.results()),
    };
    let outcome =
        finish(orchestrate.env_remove("ORCHESTRATE_PASS_ENV").envs(OF_USER.iter().copied()).args(options));
    let environment = std::fs::read_to_string(scratch.join("environment")).unwrap();
    let variable =
        |line: &str| line.split_once('=').map(|(name, value)| (name.to_string(), value.to_string()));
    (outcome, environment.lines().filter_map(variable).collect())
}

/// The names of the user's variables that the engine got.
fn passed(environment: &BTreeMap<String, String>) -> Vec<&'static str> {
    let is_passed =
        |(name, value): &&(&str, &str)| environment.get(*name).is_some_and(|passed| passed == value);
    OF_USER.iter().filter(is_passed).map(|(name, _)| *name).collect()
}

fn assert_no_secret_in(text: &str) {
    let secret = OF_USER.iter().find(|(_, value)| value.contains("0123456789") && text.contains(value));
    assert!(secret.is_none(), "{secret:?} in {text}");
}

#[test]
fn an_engine_gets_no_token_and_no_key() {
    for command in ["run", "check"] {
        let scratch = Scratch::new();
        let (outcome, environment) = run(&scratch, command, &[]);
        assert_eq!(passed(&environment), ["CUDA_VISIBLE_DEVICES", "HF_HOME", "SLURM_JOB_ID"], "{outcome:?}");
        assert!(
            environment.contains_key("PATH") && environment.contains_key("ORCHESTRATE_HOME"),
            "{environment:?}"
        );
        assert_ne!(environment["ORCHESTRATE_MODEL"], "");
    }
}

#[test]
fn an_engine_gets_the_variables_that_the_user_names() {
    let scratch = Scratch::new();
    let (_, environment) = run(&scratch, "run", &["--pass-env", "SERVICE_*,DATABASE_URL"]);
    let named = ["CUDA_VISIBLE_DEVICES", "HF_HOME", "SLURM_JOB_ID", "DATABASE_URL", "SERVICE_MODE"];
    assert_eq!(passed(&environment), named, "a token needs its whole name");
    let (outcome, _) = run(&scratch, "run", &["--pass-env", "SERVICE_MODE=fast"]);
    outcome.exits_with(2).assert_stderr(&["expected a name without a value"]);
}

#[test]
fn no_record_and_no_output_has_the_secret_that_the_user_passes() {
    let scratch = Scratch::new();
    let options = ["--pass-env", "SERVICE_TOKEN", "--full", "-v", "--debug"];
    let (outcome, environment) = run(&scratch, "run", &options);
    assert!(passed(&environment).contains(&"SERVICE_TOKEN"), "{environment:?}");
    let records: String =
        files(&scratch.results()).iter().map(|file| std::fs::read_to_string(file).unwrap()).collect();
    assert!(records.contains("SERVICE_TOKEN=[SERVICE_TOKEN]"), "{records}");
    assert_no_secret_in(&records);
    assert_no_secret_in(&outcome.stdout);
    assert_no_secret_in(&outcome.stderr);
    outcome.assert_stderr(&["environment: engines do not get ", "AWS_SECRET_ACCESS_KEY, ", "(--pass-env)"]);
}
