//! `serve` and `python::host` as processes: this program starts itself as an engine and talks to it through real pipes.
#![expect(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr, reason = "tests panic and print")]

mod toy;

use std::io::{BufRead, BufReader, PipeReader, PipeWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use engine_kit::protocol::{FailureKind, Message, parse_message};
use engine_kit::python::{PythonEngine, host};
use toy::{Toy, tiny};

/// The variable that makes this process an engine, and which one.
const ROLE: &str = "KIT_TEST_ROLE";

/// A fake Python that is a shell: `-u -s FILE` runs FILE.
const SHELL_PYTHON: &str = "#!/bin/sh\nshift 2\nexec sh \"$@\"\n";

macro_rules! tests {
    ($($test:ident),* $(,)?) => { &[$((stringify!($test), $test)),*] };
}

const TESTS: &[(&str, fn())] = tests![
    output_printed_by_an_engine_goes_to_stderr,
    a_reader_that_goes_away_ends_a_request_in_the_middle,
    a_reader_that_has_its_answer_may_go,
    an_engine_ends_with_its_input,
    a_missing_environment_is_an_answer,
    an_engine_without_an_environment_here_has_a_hint,
    a_program_that_is_no_python_is_an_answer,
    a_worker_has_the_protocol_for_itself,
    a_killed_worker_is_reported,
    a_failed_worker_is_reported,
    a_worker_file_that_was_changed_is_put_right,
    a_worker_gets_the_path_of_the_embedded_model,
    modules_of_the_caller_do_not_reach_the_worker,
    a_python_of_the_users_own_runs_the_worker,
    a_variable_that_names_no_program_is_an_answer,
];

fn main() -> ExitCode {
    if let Ok(role) = std::env::var(ROLE) {
        return play(&role);
    }
    let named: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let wanted = |name: &str| named.is_empty() || named.iter().any(|part| name.contains(part.as_str()));
    let mut failed = 0;
    for (name, test) in TESTS.iter().filter(|(name, _)| wanted(name)) {
        let passed = std::panic::catch_unwind(*test).is_ok();
        eprintln!("test {name} ... {}", if passed { "ok" } else { "FAILED" });
        failed += usize::from(!passed);
    }
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn play(role: &str) -> ExitCode {
    let worker = match role {
        "toy" => return engine_kit::serve(Chatty(Toy::new())),
        "echo" => {
            "read line; echo \"model: $ORCHESTRATE_MODEL\" >&2; echo \"path: ${PYTHONPATH-none} ${PYTHONSAFEPATH-} $(cat \"$(dirname \"$0\")/beside.txt\") $line\" >&2; echo '{\"type\":\"bye\"}'"
        }
        "killed" => "printf '{\"type\":\"gener'; kill -9 $$",
        "fails" | "elsewhere" => "exit 3",
        other => panic!("no role `{other}`"),
    };
    let files: &'static [_] = Box::leak(Box::new([("worker.py", worker), ("beside.txt", "beside")]));
    let elsewhere = role == "elsewhere";
    host(PythonEngine {
        name: "snake",
        environment: "snake",
        requirements: "torch==1\n",
        python: "3.11",
        otherwise: elsewhere.then_some("look under the third stone"),
        lacks: elsewhere.then_some(|| Some("no stone found")),
        files,
    })
}

/// A toy that prints while it loads, as some libraries do.
struct Chatty(Toy);

impl engine_kit::Engine for Chatty {
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

struct Ended {
    raw: String,
    messages: Vec<Message>,
    stderr: String,
    code: Option<i32>,
}

/// Starts this program in a role and passes all of its input at once.
fn start(role: &str, home: &Path, model: Option<&Path>, input: &str) -> Ended {
    start_with(role, home, model, input, None)
}

/// The same, with a Python that the user names for this engine.
fn start_with(role: &str, home: &Path, model: Option<&Path>, input: &str, python: Option<&Path>) -> Ended {
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
    let ended = engine.stdin_bytes(input).stdout_capture().stderr_capture().unchecked().run().unwrap();
    let raw = String::from_utf8(ended.stdout).unwrap();
    let messages = raw.lines().filter_map(|line| parse_message(line.as_bytes()).ok()).collect();
    Ended { raw, messages, stderr: String::from_utf8(ended.stderr).unwrap(), code: ended.status.code() }
}

/// A home with the environment of `snake`; its Python is a shell.
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
    let (home, model) = (tiny::folder("home-chatty"), tiny::model("chatty"));
    let input = "{\"type\":\"hello\",\"protocol\":1}\n{\"prompt\":\"w5\",\"max_new_tokens\":2}\n";
    let ended = start("toy", &home, Some(&model), input);
    assert_eq!((ended.raw.lines().count(), ended.code), (2, Some(0)), "{}", ended.raw);
    assert!(matches!(ended.messages.as_slice(), [Message::Hello(_), Message::Generated(_)]), "{}", ended.raw);
    assert!(
        ended.stderr.contains("hello from a library") && ended.stderr.contains("loading..."),
        "{}",
        ended.stderr
    );
    assert!(ended.stderr.contains("1 iteration, 2 tokens; first token "), "{}", ended.stderr);
}

/// A running toy, with the other ends of its stdin and stdout, and its messages to people.
fn under_way(test: &str) -> (duct::Handle, PipeWriter, PipeReader, BufReader<PipeReader>) {
    let (stdin, to_it) = std::io::pipe().unwrap();
    let (from_it, stdout) = std::io::pipe().unwrap();
    let (said, stderr) = std::io::pipe().unwrap();
    let engine = duct::cmd!(std::env::current_exe().unwrap())
        .env(ROLE, "toy")
        .env("ORCHESTRATE_HOME", tiny::folder(&format!("home-{test}")))
        .env("ORCHESTRATE_MODEL", tiny::model(test))
        .stdin_file(stdin)
        .stdout_file(stdout)
        .stderr_file(stderr)
        .unchecked();
    (engine.start().unwrap(), to_it, from_it, BufReader::new(said))
}

fn a_reader_that_goes_away_ends_a_request_in_the_middle() {
    let (engine, mut to_it, from_it, said) = under_way("reader-gone");
    writeln!(to_it, "{{\"prompt_ids\":[{}]}}", toy::HANGS).unwrap();
    let mut said = said.lines().map(|line| line.unwrap());
    assert!(said.any(|line| line == "it hangs"));
    drop(from_it);
    let ended = engine.wait_timeout(Duration::from_secs(60)).unwrap().expect("it still hangs");
    assert_eq!(ended.status.code(), Some(1));
    assert_eq!(said.collect::<Vec<_>>(), ["error: cannot write answers: broken pipe"]);
}

fn a_reader_that_has_its_answer_may_go() {
    let (engine, mut to_it, from_it, said) = under_way("reader-content");
    writeln!(to_it, "{{\"prompt_ids\":[5],\"max_new_tokens\":2}}").unwrap();
    let mut answer = String::new();
    BufReader::new(from_it).read_line(&mut answer).unwrap();
    assert!(matches!(parse_message(answer.as_bytes()), Ok(Message::Generated(_))), "{answer}");
    drop(to_it);
    let ended = engine.wait_timeout(Duration::from_secs(60)).unwrap().expect("its input has ended");
    assert_eq!(ended.status.code(), Some(0));
    assert!(said.lines().all(|line| !line.unwrap().contains("cannot write")));
}

fn an_engine_ends_with_its_input() {
    let home = tiny::folder("home-ends");
    let ended = start("toy", &home, None, "{\"type\":\"facts\"}");
    assert!(matches!(ended.messages.as_slice(), [Message::Facts(_)]), "{}", ended.raw);
    let ended = start("toy", &home, None, "{\"type\":\"shutdown\"}\n{\"type\":\"facts\"}\n");
    assert!(matches!(ended.messages.as_slice(), [Message::Bye {}]) && ended.code == Some(0), "{}", ended.raw);
}

fn a_missing_environment_is_an_answer() {
    let home = tiny::folder("home-missing");
    let lines = [
        "{\"type\":\"hello\",\"protocol\":1}",
        "{\"id\":7,\"prompt\":\"a\"}",
        "nonsense",
        "{\"type\":\"shutdown\"}",
    ];
    let ended = start("echo", &home, None, &lines.join("\n"));
    let [Message::Failed(hello), Message::Failed(generate), Message::Failed(broken), Message::Bye {}] =
        ended.messages.as_slice()
    else {
        panic!("{}", ended.raw)
    };
    assert_eq!(hello.kind, FailureKind::Unavailable);
    assert_eq!(hello.message, "the Python 3.11 environment of `snake` is not set up");
    // These tests run in a checkout.
    assert_eq!(hello.hint.as_deref(), Some("cargo run --release -- setup snake"));
    assert_eq!((generate.kind, generate.id.is_some()), (FailureKind::Unavailable, true));
    assert_eq!((broken.kind, ended.code), (FailureKind::BadRequest, Some(0)));
    assert!(!home.join("workers").exists(), "nothing is written for an engine that cannot run");
}

fn an_engine_without_an_environment_here_has_a_hint() {
    let ended =
        start("elsewhere", &tiny::folder("home-elsewhere"), None, "{\"type\":\"hello\",\"protocol\":1}");
    let [Message::Failed(failed)] = ended.messages.as_slice() else { panic!("{}", ended.raw) };
    assert_eq!(failed.message, "the Python 3.11 environment of `snake` is not set up, and no stone found");
    assert_eq!(failed.hint.as_deref(), Some("look under the third stone"));
}

fn a_program_that_is_no_python_is_an_answer() {
    let home = home_with_environment("home-no-python");
    // These programs end at once, repeat their input, and never end.
    for program in ["/bin/true", "/bin/echo", "/usr/bin/yes"] {
        let input = "{\"type\":\"hello\",\"protocol\":1}\n{\"type\":\"shutdown\"}\n";
        let ended = start_with("echo", &home, None, input, Some(Path::new(program)));
        let [Message::Failed(failed), Message::Bye {}] = ended.messages.as_slice() else {
            panic!("{}", ended.raw)
        };
        assert_eq!(failed.message, format!("`ORCHESTRATE_PYTHON_SNAKE` names no Python: `{program}`"));
        assert_eq!((failed.kind, ended.code), (FailureKind::Unavailable, Some(0)));
        assert!(failed.hint.as_ref().unwrap().starts_with("unset ORCHESTRATE_PYTHON_SNAKE"), "{failed:?}");
    }
}

fn a_worker_has_the_protocol_for_itself() {
    let ended = start("echo", &home_with_environment("home-echo"), None, "the request\n");
    assert!(ended.stderr.contains("beside the request"), "{}", ended.stderr);
    assert_eq!((ended.raw.as_str(), ended.code), ("{\"type\":\"bye\"}\n", Some(0)));
}

fn a_killed_worker_is_reported() {
    let ended = start("killed", &home_with_environment("home-killed"), None, "");
    let [Message::Failed(failed)] = ended.messages.as_slice() else { panic!("{}", ended.raw) };
    assert_eq!(
        (failed.kind, failed.message.as_str()),
        (FailureKind::Internal, "the Python worker was killed by signal 9")
    );
    assert!(ended.raw.starts_with("{\"type\":\"gener\n"), "half a line does not swallow it: {}", ended.raw);
    assert_eq!(ended.code, Some(137));
}

fn a_failed_worker_is_reported() {
    let ended = start("fails", &home_with_environment("home-fails"), None, "");
    let [Message::Failed(failed)] = ended.messages.as_slice() else { panic!("{}", ended.raw) };
    assert_eq!((failed.message.as_str(), ended.code), ("the Python worker ended with exit code 3", Some(3)));
}

fn a_worker_file_that_was_changed_is_put_right() {
    let home = home_with_environment("home-changed");
    let run = || start("echo", &home, None, "x\n").stderr;
    assert!(run().contains("beside x"));
    let folders: Vec<_> =
        std::fs::read_dir(home.join("workers")).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(folders.len(), 1);
    std::fs::write(folders[0].join("beside.txt"), b"changed").unwrap();
    assert!(run().contains("beside x"));
    let mut left: Vec<_> =
        std::fs::read_dir(&folders[0]).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    // The files of the Python kit.
    left.retain(|name| !name.to_string_lossy().starts_with("engine_kit") && name != "model_folder.py");
    left.sort();
    assert_eq!(left, ["beside.txt", "worker.py"]);
}

fn modules_of_the_caller_do_not_reach_the_worker() {
    let ended = start("echo", &home_with_environment("home-path"), None, "x\n");
    assert!(ended.stderr.contains("path: none "), "{}", ended.stderr);
}

fn a_worker_gets_the_path_of_the_embedded_model() {
    let (home, model) = (home_with_environment("home-embedded"), tiny::model("named"));
    let told = |model| start("echo", &home, model, "x\n").stderr.lines().next().unwrap().to_string();
    assert!(told(None).ends_with("models/embedded"), "{}", told(None));
    assert_eq!(told(Some(Path::new("embedded"))), told(None));
    assert_eq!(told(Some(&model)), format!("model: {}", model.display()));
    assert_eq!(told(Some(Path::new("/no/such/model"))), "model: /no/such/model");
}

fn a_python_of_the_users_own_runs_the_worker() {
    let home = tiny::folder("home-own");
    let python = home.join("own-python");
    write_program(
        &python,
        "#!/bin/sh\n[ \"$1\" = -S ] && echo python && exit\necho \"own $*\" >&2\nshift 1\nexec sh \"$@\"\n",
    );
    let ended = start_with("echo", &home, None, "x\n", Some(&python));
    assert!(ended.stderr.contains("own -u /"), "{}", ended.stderr);
    assert!(ended.stderr.contains("path: /somewhere/else  beside x"), "{}", ended.stderr);
    assert_eq!((ended.raw.as_str(), ended.code), ("{\"type\":\"bye\"}\n", Some(0)));
    assert!(!home.join("environments").exists());
}

fn a_variable_that_names_no_program_is_an_answer() {
    let home = home_with_environment("home-no-program");
    let ended = start_with("echo", &home, None, "{\"type\":\"facts\"}", Some(Path::new("/no/such/python")));
    let [Message::Failed(failed)] = ended.messages.as_slice() else { panic!("{}", ended.raw) };
    assert_eq!(failed.message, "`ORCHESTRATE_PYTHON_SNAKE` names no program: `/no/such/python`");
    assert_eq!(failed.kind, FailureKind::Unavailable);
    assert!(failed.hint.as_ref().unwrap().starts_with("unset ORCHESTRATE_PYTHON_SNAKE"), "{failed:?}");
}
