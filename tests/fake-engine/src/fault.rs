//! The list of all faults, and the code of faults that are actions, such as an exit. Wrong facts are in other modules.
//!
//! Only this file starts processes. A shell sends the signals, so the file needs no unsafe code.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::script::Script;

/// Faults: name and effect. Faults of a `generate` begin with the request that the setting `at` gives.
pub const FAULTS: &[(&str, &str)] = &[
    ("exits_before_hello", "reads nothing, writes two lines on stderr and exits with `exit_code`"),
    ("never_answers", "reads no request and writes no answer"),
    ("wrong_version", "hello reports protocol 999"),
    ("hangs_in_hello", "never answers hello; answers everything else"),
    ("says_unavailable", "answers hello with `failed` of kind `unavailable`, and a hint"),
    ("says_bad_request_to_hello", "answers all but `generate` with `failed` of kind `bad_request`"),
    ("answers_broken_json", "answers a line that is no JSON object as a `generate` with default values"),
    ("unsupported_option", "answers a load with an unknown option with `failed` of kind `unsupported`"),
    ("ignores_capabilities", "supports also the features that `hello` does not claim"),
    (
        "checks_context_first",
        "refuses a request beyond the context before a request for an unclaimed feature",
    ),
    ("accepts_large_integers", "accepts an `id` and a `seed` above 2^53 - 1"),
    ("garbage", "answers every request with a line that begins with `{` and is neither JSON nor UTF-8"),
    ("stray_lines", "writes a few stray lines on stdout before each answer"),
    ("hangs_in_load", "never answers load"),
    ("exits_in_load", "writes a line on stderr and exits with `exit_code`"),
    ("fails_in_load", "answers load with `failed` of kind `model`"),
    ("slow_progress", "loads for at least 2 s and sends progress every 50 ms"),
    ("hangs_in_generate", "never answers generate"),
    ("progress_without_end", "once it has loaded, sends progress every 50 ms and never answers generate"),
    ("hangs_in_score", "never answers score"),
    ("exits_after_failed_score", "answers score with `failed` and exits with `exit_code`"),
    ("exits_at_sample", "writes a line on stderr and exits with `exit_code` instead of answering"),
    ("killed_at_sample", "ends by `signal` instead of answering"),
    ("aborts_at_sample", "ends by SIGABRT instead of answering"),
    ("half_line_then_hangs", "writes half an answer without a newline, and then nothing"),
    ("half_line_then_exits", "writes half an answer without a newline and exits with `exit_code`"),
    ("closes_stdout", "closes stdout instead of answering, and keeps running"),
    ("many_stray_lines", "writes `amount` stray lines on stdout before the answer"),
    ("unrequested_drafts", "drafts tokens, also if the request asks for no speculation"),
    ("uses_prefixes_always", "has a prefix cache, and uses it also for requests that do not allow it"),
    ("uncounted_drafts", "drafts tokens without counting them"),
    ("stderr_flood", "writes `amount` lines on stderr before the answer"),
    ("hides_time", "answers 100 ms after the reported end"),
    ("huge_line", "writes a line of JSON of 100 times `amount` bytes before the answer"),
    ("endless_line", "writes a line of JSON without an end instead of answering"),
    ("stops_at_sample", "stops itself by SIGSTOP instead of answering"),
    ("long_message", "answers with `failed`, whose message has 100000 characters"),
    ("hint_in_message", "answers with `failed`, whose message has a line with a hint"),
    ("out_of_memory", "answers with `failed` of kind `out_of_memory`"),
    ("duplicate_answer", "answers twice"),
    ("wrong_id", "answers with another id"),
    ("wrong_token_count", "gives one token fewer than requested, and reports `length`"),
    ("missing_time", "leaves out the time of the last token"),
    ("wrong_prompt_tokens", "counts one token of the prompt too many"),
    ("wrong_streamed_ids", "streams ids that differ from the answer's"),
    ("nondeterministic", "gives other ids to each request"),
    ("ends_at_early_eos", "ends with EOS after half of the tokens, also with `ignore_eos`"),
    ("continues_after_eos", "puts EOS in the middle and continues, also without `ignore_eos`"),
    ("id_beyond_vocabulary", "the last id equals the size of the vocabulary"),
    ("times_backwards", "the last token comes before the start"),
    ("times_in_the_future", "the last token and the end are an hour in the future"),
    ("nan_end_ns", "`end_ns` is NaN"),
    ("negative_end_ns", "`end_ns` is -1"),
    ("missing_end_ns", "there is no `end_ns`"),
    ("wrong_scores", "gives one log-probability too few for each sequence"),
    ("impossible_tokens", "gives the last token of each sequence the probability 0"),
    ("no_id", "answers without an id"),
    ("too_many_tokens", "gives one token more than requested"),
    ("extra_time", "gives the time of the last token twice"),
    ("no_output", "gives no ids and no times of tokens"),
    ("miscounted_chunks", "the chunks of its text have more tokens than `output_tokens`"),
    ("half_of_text", "gives no text for the second half of its tokens"),
    ("says_eos", "reports `eos` as its end, without an EOS token"),
    ("says_cancelled", "reports `cancelled` as its end"),
    ("more_cached_than_sent", "reports more cached tokens of the prompt than the prompt has"),
    ("two_iterations", "gives its iteration twice"),
    ("unrequested_warmup", "gives warm-up iterations too"),
    ("no_sequence", "gives no sequence"),
    ("first_token_at_start", "the first token comes with the start"),
    ("times_out_of_order", "the third token comes before the second"),
    ("ends_before_start", "the end comes before the start"),
    ("ends_before_last_token", "the end comes before the last token"),
    ("streams_unrequested", "streams without a request for it"),
    ("streams_half", "streams every other token"),
    ("streams_unknown_sequence", "streams tokens of a sequence that does not exist"),
    ("streams_other_times", "streams times that are later than the answer's"),
    ("early_times", "the times of tokens and of the end are halved, counted from the start"),
    ("bunched_times", "stamps all tokens together at the end"),
    ("early_tokens", "the times of tokens are halved, counted from the start; the end is true"),
    (
        "halved_short_times",
        "without a stream: the times of tokens and of the end are halved in requests under 40 ms",
    ),
    ("early_first_token", "without a stream: the first token is a quarter early in requests under 40 ms"),
    ("early_first_token_and_end", "as `early_first_token`; the end is early too if there is one token"),
    (
        "times_10_ms_early",
        "without a stream: the times of tokens and of the end are 10 ms early, but not before the start",
    ),
    ("grouped_times", "without a stream: four tokens have the time of the first of them"),
    ("repeats_at_once", "answers a repeated prompt in a twentieth of the time"),
    ("rate_without_facts", "answers with a rate in `summary` and with no iteration"),
    ("ignores_shutdown", "keeps running after `shutdown` and after the end of stdin"),
    ("ignores_sigterm", "as `ignores_shutdown`, and ignores SIGTERM too"),
    (
        "leaves_grandchild",
        "leaves `sleep 1000` behind, in its own session, and writes its process id on stderr",
    ),
    (
        "leaves_daemon",
        "leaves `sleep 1000` behind after two forks, in its own session, with an emptied environment; writes its process id on stderr",
    ),
    ("fills_folder", "writes `amount` bytes into its working folder and never answers"),
    ("grandchild_holds_stdout", "as `leaves_grandchild`, and the grandchild holds stdout and stderr open"),
];

pub fn has(script: &Script, name: &str) -> bool {
    debug_assert!(FAULTS.iter().any(|(known, _)| *known == name), "{name}");
    script.faults().any(|fault| fault == name)
}

/// Reports on stderr that the engine hangs, and waits forever. SIGTERM ends the process, unless the signal is ignored.
pub fn hang(moment: &str) -> ! {
    eprint(&format!("fake: hangs {moment}\n"));
    loop {
        std::thread::park();
    }
}

pub fn exit(script: &Script, message: &str) -> ! {
    eprint(message);
    #[expect(clippy::disallowed_methods, reason = "this fault is an exit without an answer")]
    std::process::exit(script.count("exit_code") as i32)
}

/// The faults before the first request is read.
pub fn before_hello(script: &Script) {
    if has(script, "exits_before_hello") {
        exit(script, "fake: initialising\nfake: error: libfake.so.4: cannot open shared object file\n");
    }
    if has(script, "never_answers") {
        hang("before hello");
    }
    if has(script, "ignores_sigterm") && std::env::var_os("FAKE_ENGINE_IGNORES_SIGTERM").is_none() {
        ignore_sigterm();
    }
}

/// The faults before or instead of an answer to a `generate`. `Some` is the kind and message of a `failed`.
pub fn before_answer(script: &Script, line: &str) -> Option<(&'static str, String)> {
    if has(script, "hangs_in_generate") {
        hang("in generate");
    }
    if has(script, "fills_folder") {
        fill_folder(script);
    }
    if has(script, "exits_at_sample") {
        exit(script, "fake: error: assertion `tokens > 0` failed\n");
    }
    if has(script, "aborts_at_sample") {
        eprint("fake: fatal: heap corrupted\n");
        std::process::abort();
    }
    if has(script, "killed_at_sample") {
        raise(script.text("signal"));
    }
    if has(script, "stops_at_sample") {
        let _ = command("sh").args(["-c", "kill -STOP $PPID"]).stdin(Stdio::null()).status();
        hang("after it was stopped");
    }
    if has(script, "closes_stdout") {
        close_stdout();
    }
    if has(script, "endless_line") {
        write_endless_line();
    }
    if has(script, "half_line_then_hangs") || has(script, "half_line_then_exits") {
        print_bytes(&line.as_bytes()[..line.len() / 2]);
        if has(script, "half_line_then_hangs") {
            hang("after half a line");
        }
        exit(script, "fake: error: broken off\n");
    }
    let amount = script.count("amount");
    if has(script, "many_stray_lines") {
        (0..amount)
            .for_each(|n| print(&format!("step {n}: everything is fine, nothing to see in this line\n")));
    }
    if has(script, "stderr_flood") {
        (0..amount).for_each(|n| eprint(&format!("fake: warning {n}: this line is one of many\n")));
    }
    if has(script, "hides_time") {
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    if has(script, "huge_line") {
        let filler = "a".repeat(amount as usize * 100);
        print(&format!("{{\"type\":\"generated\",\"filler\":\"{filler}\",\"iterations\":[]}}\n"));
    }
    let failures = [
        ("out_of_memory", "out_of_memory", "tried to allocate 2.00 GiB, 1.25 GiB are free".to_owned()),
        ("long_message", "internal", "a".repeat(100_000)),
        ("hint_in_message", "device", "no kernel for this shape\nhint: --set kernels=portable".to_owned()),
    ];
    let mut failures = failures.into_iter().filter(|(fault, ..)| has(script, fault));
    failures.next().map(|(_, kind, message)| (kind, message))
}

pub fn send_progress_without_end() -> ! {
    loop {
        print("{\"type\":\"progress\",\"phase\":\"pretend\"}\n");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

fn write_endless_line() -> ! {
    print("{\"type\":\"generated\",\"filler\":\"");
    let filler = [b'a'; 1 << 16];
    let mut stdout = std::io::stdout().lock();
    while stdout.write_all(&filler).is_ok() {}
    hang("after an endless line")
}

pub fn leave_grandchild(script: &Script) {
    let holds_stdout = has(script, "grandchild_holds_stdout");
    if !holds_stdout && !has(script, "leaves_grandchild") {
        return;
    }
    let stdio = || if holds_stdout { Stdio::inherit() } else { Stdio::null() };
    let mut command = command("setsid");
    let child = command.args(["sleep", "1000"]).stdin(Stdio::null()).stdout(stdio()).stderr(stdio()).spawn();
    match child {
        Ok(child) => eprint(&format!("fake: grandchild {}\n", child.id())),
        Err(error) => exit(script, &format!("fake: `setsid` does not start: {error}\n")),
    }
}

/// The shell that starts the daemon ends at once, so the daemon's parent is no process of this engine.
pub fn leave_daemon(script: &Script) {
    if !has(script, "leaves_daemon") {
        return;
    }
    let start = "setsid env -i sleep 1000 >/dev/null 2>&1 & echo $!";
    match command("sh").args(["-c", start]).stdin(Stdio::null()).output() {
        Ok(output) => eprint(&format!("fake: daemon {}", String::from_utf8_lossy(&output.stdout))),
        Err(error) => exit(script, &format!("fake: `sh` does not start: {error}\n")),
    }
}

fn fill_folder(script: &Script) -> ! {
    if let Err(error) = std::fs::write("fill", vec![1; script.count("amount") as usize]) {
        exit(script, &format!("fake: cannot write `fill`: {error}\n"));
    }
    hang("after it wrote a file")
}

pub fn print(text: &str) {
    print_bytes(text.as_bytes());
}

/// Prints bytes. A closed pipe is not reported, because stdin ends next.
pub fn print_bytes(bytes: &[u8]) {
    let mut stdout = std::io::stdout().lock();
    let _ = stdout.write_all(bytes).and_then(|()| stdout.flush());
}

pub fn eprint(text: &str) {
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}

fn command(program: &str) -> Command {
    #[expect(clippy::disallowed_methods, reason = "these child processes are faults that a test expects")]
    Command::new(program)
}

/// Sends a signal to this process, several times. Rust's handler of SIGSEGV ignores the first signal that no memory access
/// caused.
fn raise(signal: &str) -> ! {
    for _ in 0..100 {
        let kill = format!("kill -{signal} $PPID");
        let _ = command("sh").args(["-c", &kill]).stdin(Stdio::null()).stderr(Stdio::null()).status();
    }
    hang("after a signal that did nothing")
}

/// Replaces the process by `sleep`, which never writes. The stdout of `sleep` is `/dev/null`, so the pipe is closed.
fn close_stdout() -> ! {
    use std::os::unix::process::CommandExt;
    let error = command("sleep").arg("1000").stdout(Stdio::null()).exec();
    panic!("`sleep` does not start: {error}")
}

/// Restarts this program through a shell that ignores SIGTERM. An ignored signal stays ignored after `exec`.
fn ignore_sigterm() -> ! {
    use std::os::unix::process::CommandExt;
    let program = std::env::current_exe().unwrap_or_default();
    let error = command("sh")
        .args(["-c", "trap '' TERM; exec \"$0\" \"$@\""])
        .arg(program)
        .args(std::env::args_os().skip(1))
        .env("FAKE_ENGINE_IGNORES_SIGTERM", "1")
        .exec();
    panic!("`sh` does not start: {error}")
}
