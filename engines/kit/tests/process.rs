//! Tests `serve` and `python::host` as processes: this program starts itself as an engine and talks to it through real pipes.
#![expect(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr, reason = "tests panic and print")]

mod toy;

use std::io::{BufRead, BufReader, PipeReader, PipeWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use engine_kit::model_files::{Dtype, Format, Goal, Shape, synthesise};
use engine_kit::protocol::{FailureKind, Message, parse_message};
use engine_kit::python::{PythonEngine, host};
use toy::{Toy, tiny};

/// The environment variable that makes this program an engine: its value selects which one.
const ROLE: &str = "KIT_TEST_ROLE";

const HELLO: &str = r#"{"type":"hello","protocol":1}"#;

/// A fake Python that is a shell: with the arguments `-u -s FILE`, it runs FILE.
const SHELL_PYTHON: &str = "#!/bin/sh\nshift 2\nexec sh \"$@\"\n";

macro_rules! tests {
    ($($test:ident),* $(,)?) => { &[$((stringify!($test), $test)),*] };
}

const TESTS: &[(&str, fn())] = tests![
    output_printed_by_an_engine_goes_to_stderr,
    a_closed_stdout_ends_a_running_request,
    a_stdout_closed_after_the_answer_is_no_error,
    an_engine_ends_when_its_input_ends,
    a_missing_environment_is_reported,
    an_engine_with_an_install_hint_shows_this_hint,
    a_program_other_than_python_is_reported,
    only_the_worker_writes_to_stdout_and_the_pythonpath_of_the_caller_is_removed,
    a_killed_worker_is_reported,
    a_failed_worker_is_reported,
    a_changed_worker_file_is_written_again,
    a_worker_gets_the_path_of_the_embedded_model,
    the_python_of_the_user_runs_the_worker,
    a_variable_that_names_no_program_is_reported,
    a_conversion_by_another_program_is_made_once_for_each_converter_and_model,
    a_failed_conversion_leaves_nothing_and_quotes_the_end_of_the_output,
];

/// Runs an engine or the tests. The usual test harness cannot run an engine in `main`, so `Cargo.toml` switches it off.
fn main() -> ExitCode {
    if let Ok(role) = std::env::var(ROLE) {
        return run_role(&role);
    }
    let filters: Vec<String> = std::env::args().skip(1).filter(|it| !it.starts_with('-')).collect();
    let accepts = |name: &str| filters.is_empty() || filters.iter().any(|it| name.contains(it.as_str()));
    let mut failed = 0;
    for (name, test) in TESTS.iter().filter(|(name, _)| accepts(name)) {
        let passed = std::panic::catch_unwind(*test).is_ok();
        eprintln!("test {name} ... {}", if passed { "ok" } else { "FAILED" });
        failed += usize::from(!passed);
    }
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run_role(role: &str) -> ExitCode {
    let worker = match role {
        "toy" => return engine_kit::serve(PrintingToy(Toy::new())),
        "echo" => {
            r#"
            read line
            echo "model: $ORCHESTRATE_MODEL" >&2
            data=$(cat "$(dirname "$0")/data.txt")
            echo "PYTHONPATH=${PYTHONPATH-none} PYTHONSAFEPATH=${PYTHONSAFEPATH-none} data=$data line=$line" >&2
            echo '{"type":"bye"}'"#
        }
        "killed" => r#"printf '{"type":"gener'; kill -9 $$"#,
        "fails" | "install-hint" => "exit 3",
        unknown => panic!("unknown role `{unknown}`"),
    };
    let files: &'static [_] = Box::leak(Box::new([("worker.py", worker), ("data.txt", "original")]));
    let has_install_hint = role == "install-hint";
    host(PythonEngine {
        name: "snake",
        environment: "snake",
        requirements: "torch==1\n",
        python: "3.11",
        install_hint: has_install_hint.then_some("use the container"),
        find_missing_requirement: has_install_hint.then_some(|| Some("no image found")),
        files,
    })
}

/// A toy that prints on stdout, as some libraries do.
struct PrintingToy(Toy);

impl engine_kit::Engine for PrintingToy {
    type Model = toy::ToyModel;

    fn hello(&self) -> Result<engine_kit::protocol::HelloFacts, engine_kit::protocol::Failed> {
        println!("{{\"type\":\"hello from a library\"}}");
        self.0.hello()
    }

    fn load(
        &mut self,
        folder: &engine_kit::model_files::ModelFolder,
        load: &engine_kit::protocol::Load,
        phases: &mut engine_kit::Phases,
    ) -> Result<toy::ToyModel, engine_kit::protocol::Failed> {
        println!("loading...");
        self.0.load(folder, load, phases)
    }
}

struct Output {
    raw: String,
    messages: Vec<Message>,
    stderr: String,
    code: Option<i32>,
}

/// Starts this program in a role, sends the whole input at once, and waits for its end.
fn run(role: &str, home: &Path, model: Option<&Path>, input: &str) -> Output {
    run_python(role, home, model, input, None)
}

/// Like `run`, with the user's own Python for this engine.
fn run_python(role: &str, home: &Path, model: Option<&Path>, input: &str, python: Option<&Path>) -> Output {
    let mut engine = duct::cmd!(std::env::current_exe().unwrap())
        .env(ROLE, role)
        .env("ORCHESTRATE_HOME", home)
        .env("PYTHONPATH", "/somewhere/else")
        .env("PYTHONSAFEPATH", "1")
        .env_remove("ORCHESTRATE_PYTHON")
        .env_remove("ORCHESTRATE_DEVICE")
        .env_remove("ORCHESTRATE_DTYPE")
        .env_remove("ORCHESTRATE_THREADS");
    engine = match python {
        Some(python) => engine.env("ORCHESTRATE_PYTHON_SNAKE", python),
        None => engine.env_remove("ORCHESTRATE_PYTHON_SNAKE"),
    };
    engine = match model {
        Some(model) => engine.env("ORCHESTRATE_MODEL", model),
        None => engine.env_remove("ORCHESTRATE_MODEL"),
    };
    let output = engine.stdin_bytes(input).stdout_capture().stderr_capture().unchecked().run().unwrap();
    let raw = String::from_utf8(output.stdout).unwrap();
    let messages = raw.lines().filter_map(|line| parse_message(line.as_bytes()).ok()).collect();
    Output { raw, messages, stderr: String::from_utf8(output.stderr).unwrap(), code: output.status.code() }
}

/// A home with the environment of `snake`, whose Python is a shell.
fn home_with_environment(name: &str) -> PathBuf {
    let home = tiny::folder(name);
    let digest = paths::digest(b"torch==1\n");
    let environment = home.join(format!("environments/snake-{digest}"));
    std::fs::create_dir_all(environment.join("bin")).unwrap();
    write_program(&environment.join("bin/python"), SHELL_PYTHON);
    std::fs::write(environment.join(paths::READY_FILE), b"").unwrap();
    home
}

fn write_program(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
}

fn output_printed_by_an_engine_goes_to_stderr() {
    let (home, model) = (tiny::folder("home-prints"), tiny::model("prints"));
    let input = format!("{HELLO}\n{{\"prompt\":\"w5\",\"max_new_tokens\":2}}\n");
    let output = run("toy", &home, Some(&model), &input);
    assert_eq!((output.raw.lines().count(), output.code), (2, Some(0)), "{}", output.raw);
    let [Message::Hello(_), Message::Generated(_)] = output.messages.as_slice() else {
        panic!("{}", output.raw)
    };
    for part in ["hello from a library", "loading...", "1 iteration, 2 tokens; first token "] {
        assert!(output.stderr.contains(part), "{}", output.stderr);
    }
}

/// A running toy, and the ends of its stdin, stdout and stderr that the test uses.
fn start_toy(test: &str) -> (duct::Handle, PipeWriter, PipeReader, BufReader<PipeReader>) {
    let (stdin, to_engine) = std::io::pipe().unwrap();
    let (from_engine, stdout) = std::io::pipe().unwrap();
    let (from_stderr, stderr) = std::io::pipe().unwrap();
    let engine = duct::cmd!(std::env::current_exe().unwrap())
        .env(ROLE, "toy")
        .env("ORCHESTRATE_HOME", tiny::folder(&format!("home-{test}")))
        .env("ORCHESTRATE_MODEL", tiny::model(test))
        .stdin_file(stdin)
        .stdout_file(stdout)
        .stderr_file(stderr)
        .unchecked();
    (engine.start().unwrap(), to_engine, from_engine, BufReader::new(from_stderr))
}

fn a_closed_stdout_ends_a_running_request() {
    let (engine, mut to_engine, from_engine, stderr) = start_toy("closed-before-answer");
    writeln!(to_engine, "{{\"prompt_ids\":[{}]}}", toy::HANGS).unwrap();
    let mut stderr = stderr.lines().map(|line| line.unwrap());
    assert!(stderr.any(|line| line == "hanging"));
    drop(from_engine);
    let output = engine.wait_timeout(Duration::from_secs(60)).unwrap().expect("the engine still runs");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(stderr.collect::<Vec<_>>(), ["error: cannot write answers: broken pipe"]);
}

fn a_stdout_closed_after_the_answer_is_no_error() {
    let (engine, mut to_engine, from_engine, stderr) = start_toy("closed-after-answer");
    writeln!(to_engine, "{{\"prompt_ids\":[5],\"max_new_tokens\":2}}").unwrap();
    let mut answer = String::new();
    BufReader::new(from_engine).read_line(&mut answer).unwrap();
    assert!(matches!(parse_message(answer.as_bytes()), Ok(Message::Generated(_))), "{answer}");
    drop(to_engine);
    let output = engine.wait_timeout(Duration::from_secs(60)).unwrap().expect("the engine still runs");
    assert_eq!(output.status.code(), Some(0));
    assert!(stderr.lines().all(|line| !line.unwrap().contains("cannot write")));
}

fn an_engine_ends_when_its_input_ends() {
    let home = tiny::folder("home-ends");
    let output = run("toy", &home, None, r#"{"type":"facts"}"#);
    assert!(matches!(output.messages.as_slice(), [Message::Facts(_)]), "{}", output.raw);
    let output = run("toy", &home, None, "{\"type\":\"shutdown\"}\n{\"type\":\"facts\"}\n");
    assert!(matches!(output.messages.as_slice(), [Message::Bye {}]), "{}", output.raw);
    assert_eq!(output.code, Some(0));
}

fn a_missing_environment_is_reported() {
    let home = tiny::folder("home-missing");
    let lines = [HELLO, r#"{"id":7,"prompt":"a"}"#, "nonsense", r#"{"type":"shutdown"}"#];
    let output = run("echo", &home, None, &lines.join("\n"));
    let [Message::Failed(hello), Message::Failed(generate), Message::Failed(invalid), Message::Bye {}] =
        output.messages.as_slice()
    else {
        panic!("{}", output.raw)
    };
    assert_eq!(hello.kind, FailureKind::Unavailable);
    assert_eq!(hello.message, "the Python 3.11 environment of `snake` is not set up");
    // These tests run in a checkout.
    assert_eq!(hello.hint.as_deref(), Some("cargo run --release -- setup snake"));
    assert_eq!((generate.kind, generate.id.is_some()), (FailureKind::Unavailable, true));
    assert_eq!((invalid.kind, output.code), (FailureKind::BadRequest, Some(0)));
    assert!(!home.join("workers").exists(), "no file must be written for an engine that cannot run");
}

fn an_engine_with_an_install_hint_shows_this_hint() {
    let output = run("install-hint", &tiny::folder("home-install-hint"), None, HELLO);
    let [Message::Failed(failed)] = output.messages.as_slice() else { panic!("{}", output.raw) };
    assert_eq!(failed.message, "the Python 3.11 environment of `snake` is not set up, and no image found");
    assert_eq!(failed.hint.as_deref(), Some("use the container"));
}

fn a_program_other_than_python_is_reported() {
    let home = home_with_environment("home-no-python");
    // `true` prints nothing, `echo` prints its arguments, and `yes` never ends.
    for program in ["/bin/true", "/bin/echo", "/usr/bin/yes"] {
        let input = format!("{HELLO}\n{{\"type\":\"shutdown\"}}\n");
        let output = run_python("echo", &home, None, &input, Some(Path::new(program)));
        let [Message::Failed(failed), Message::Bye {}] = output.messages.as_slice() else {
            panic!("{}", output.raw)
        };
        assert_eq!(failed.message, format!("`ORCHESTRATE_PYTHON_SNAKE` names no Python: `{program}`"));
        assert_eq!((failed.kind, output.code), (FailureKind::Unavailable, Some(0)));
        assert!(failed.hint.as_ref().unwrap().starts_with("unset ORCHESTRATE_PYTHON_SNAKE"), "{failed:?}");
    }
}

fn only_the_worker_writes_to_stdout_and_the_pythonpath_of_the_caller_is_removed() {
    let output = run("echo", &home_with_environment("home-echo"), None, "the request\n");
    assert!(
        output.stderr.contains("PYTHONPATH=none PYTHONSAFEPATH=none data=original line=the request"),
        "{}",
        output.stderr
    );
    assert_eq!((output.raw.as_str(), output.code), ("{\"type\":\"bye\"}\n", Some(0)));
}

fn a_killed_worker_is_reported() {
    let output = run("killed", &home_with_environment("home-killed"), None, "");
    let [Message::Failed(failed)] = output.messages.as_slice() else { panic!("{}", output.raw) };
    assert_eq!((failed.kind, output.code), (FailureKind::Internal, Some(137)));
    assert_eq!(failed.message, "the Python worker was killed by signal 9");
    assert!(
        output.raw.starts_with("{\"type\":\"gener\n"),
        "the failure must be on a line of its own: {}",
        output.raw
    );
}

fn a_failed_worker_is_reported() {
    let output = run("fails", &home_with_environment("home-fails"), None, "");
    let [Message::Failed(failed)] = output.messages.as_slice() else { panic!("{}", output.raw) };
    assert_eq!((failed.message.as_str(), output.code), ("the Python worker ended with exit code 3", Some(3)));
}

fn a_changed_worker_file_is_written_again() {
    let home = home_with_environment("home-changed");
    let stderr = || run("echo", &home, None, "x\n").stderr;
    assert!(stderr().contains("data=original line=x"));
    let folders: Vec<_> =
        std::fs::read_dir(home.join("workers")).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(folders.len(), 1);
    std::fs::write(folders[0].join("data.txt"), b"changed").unwrap();
    assert!(stderr().contains("data=original line=x"));
    let mut names: Vec<_> =
        std::fs::read_dir(&folders[0]).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    // The files of the Python kit are also in the folder.
    let kit = Path::new(env!("CARGO_MANIFEST_DIR")).join("python");
    names.retain(|name| !kit.join(name).exists());
    names.sort();
    assert_eq!(names, ["data.txt", "worker.py"]);
}

fn a_worker_gets_the_path_of_the_embedded_model() {
    let (home, model) = (home_with_environment("home-embedded"), tiny::model("named"));
    let model_line = |model| run("echo", &home, model, "x\n").stderr.lines().next().unwrap().to_string();
    assert!(model_line(None).ends_with("models/embedded"), "{}", model_line(None));
    assert_eq!(model_line(Some(Path::new("embedded"))), model_line(None));
    assert_eq!(model_line(Some(&model)), format!("model: {}", model.display()));
    assert_eq!(model_line(Some(Path::new("/no/such/model"))), "model: /no/such/model");
}

fn the_python_of_the_user_runs_the_worker() {
    let home = tiny::folder("home-own");
    let python = home.join("own-python");
    // The kit first runs a program with `-S` to check that it is Python. The script answers as Python does.
    write_program(
        &python,
        "#!/bin/sh\n[ \"$1\" = -S ] && echo python && exit\necho \"own $*\" >&2\nshift 1\nexec sh \"$@\"\n",
    );
    let output = run_python("echo", &home, None, "x\n", Some(&python));
    assert!(output.stderr.contains("own -u /"), "{}", output.stderr);
    let expected = "PYTHONPATH=/somewhere/else PYTHONSAFEPATH=none data=original line=x";
    assert!(output.stderr.contains(expected), "{}", output.stderr);
    assert_eq!((output.raw.as_str(), output.code), ("{\"type\":\"bye\"}\n", Some(0)));
    assert!(!home.join("environments").exists());
}

fn a_variable_that_names_no_program_is_reported() {
    let home = home_with_environment("home-no-program");
    let output = run_python("echo", &home, None, HELLO, Some(Path::new("/no/such/python")));
    let [Message::Failed(failed)] = output.messages.as_slice() else { panic!("{}", output.raw) };
    assert_eq!(failed.message, "`ORCHESTRATE_PYTHON_SNAKE` names no program: `/no/such/python`");
    assert_eq!(failed.kind, FailureKind::Unavailable);
    assert!(failed.hint.as_ref().unwrap().starts_with("unset ORCHESTRATE_PYTHON_SNAKE"), "{failed:?}");
}

/// A model with all tensors of its architecture.
fn complete_model(name: &str) -> PathBuf {
    let out = tiny::folder(name).join("model");
    let goal = Goal { format: Format::Safetensors, dtype: Dtype::F32, out: out.clone() };
    synthesise(&Shape::named("tiny-llama").unwrap(), 0, &goal, &|_, _| Ok(())).unwrap();
    out
}

/// Runs the command for conversions, with a shell script as the converter. The script's `$1` is the folder to write.
fn convert(home: &Path, model: &Path, converter: &str, script: &str) -> std::process::Output {
    let arguments =
        ["convert-with", model.to_str().unwrap(), "onnx", "f32", converter, "sh", "-c", script, "sh"];
    duct::cmd(std::env::current_exe().unwrap(), arguments)
        .env(ROLE, "echo")
        .env("ORCHESTRATE_HOME", home)
        .stdout_capture()
        .stderr_capture()
        .unchecked()
        .run()
        .unwrap()
}

fn a_conversion_by_another_program_is_made_once_for_each_converter_and_model() {
    let (home, model) = (tiny::folder("home-conversions"), complete_model("converted-model"));
    let runs = home.join("runs");
    let script = format!(
        "echo 0.5; echo text; echo run >> '{}'; mkdir \"$1\"; echo made > \"$1/model\"",
        runs.display()
    );
    let convert = |model: &Path, converter: &str| {
        let output = convert(&home, model, converter, &script);
        assert!(output.status.success(), "{output:?}");
        let stdout = String::from_utf8(output.stdout).unwrap();
        let lines: Vec<String> = stdout.lines().map(str::to_string).collect();
        let made = PathBuf::from(lines.last().unwrap());
        assert_eq!(std::fs::read_to_string(made.join("model")).unwrap(), "made\n");
        assert!(made.starts_with(home.join("conversions")));
        (lines.len(), made)
    };
    let count_runs = || std::fs::read_to_string(&runs).unwrap().lines().count();
    // The first conversion prints its progress too.
    let (lines, first) = convert(&model, "tool 1");
    assert_eq!((lines, count_runs()), (2, 1));
    assert_eq!((convert(&model, "tool 1"), count_runs()), ((1, first.clone()), 1));
    let (_, by_another_version) = convert(&model, "tool 2");
    assert_eq!(count_runs(), 2);
    assert_ne!(by_another_version, first);
    let config = std::fs::read_to_string(model.join("config.json")).unwrap();
    std::fs::write(model.join("config.json"), config.replacen('{', r#"{"changed":1,"#, 1)).unwrap();
    let (_, of_another_model) = convert(&model, "tool 1");
    assert_eq!(count_runs(), 3);
    assert_ne!(of_another_model, first);
}

fn a_failed_conversion_leaves_nothing_and_quotes_the_end_of_the_output() {
    let (home, model) = (tiny::folder("home-failed-conversion"), complete_model("unconverted-model"));
    let many_lines = "i=0; while [ $i -lt 500 ]; do echo line $i; i=$((i + 1)); done";
    for (script, expected) in [
        (format!("mkdir \"$1\"; {many_lines}; echo disk full >&2; exit 3"), "disk full"),
        ("echo no folder".into(), "wrote no folder: no folder"),
    ] {
        let output = convert(&home, &model, "tool 1", &script);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(stderr.contains(expected) && !stderr.contains("line 100"), "{stderr}");
        let left = std::fs::read_dir(home.join("conversions")).map_or(0, Iterator::count);
        assert_eq!(left, 0, "{expected}");
    }
}
