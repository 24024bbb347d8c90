//! The conversation: reads requests, notes their arrival times, and answers them in order. With a capability `concurrency`
//! above 1, `generate` requests with ids are answered in parallel.

use std::collections::BTreeMap;
use std::io::BufRead;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use crate::effects::Launch;
use crate::fault::{self, eprint, has, print};
use crate::script::Script;
use crate::{answer, false_report, generate, rounding};

const MAX_LINE_BYTES: usize = 16 * 1024 * 1024;

/// Unanswered `generate` requests by id, and whether they were cancelled. The thread that reads requests and the threads that
/// generate share this map.
#[derive(Clone, Default)]
struct OpenRequests(Arc<Mutex<BTreeMap<String, bool>>>);

impl OpenRequests {
    fn update<T>(&self, change: impl FnOnce(&mut BTreeMap<String, bool>) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Notes a request when it is read. Returns true if the request needs no answer.
    fn register(&self, request: &Value) -> bool {
        let id = request["id"].to_string();
        match request["type"].as_str() {
            Some("cancel") => {
                self.update(|open| open.get_mut(&id).map(|cancelled| *cancelled = true));
                true
            }
            Some("generate") | None if !request["id"].is_null() => {
                self.update(|open| open.insert(id, false));
                false
            }
            _ => false,
        }
    }

    fn is_cancelled(&self, id: &str) -> bool {
        self.update(|open| open.get(id) == Some(&true))
    }

    fn close(&self, id: &Value) {
        self.update(|open| open.remove(&id.to_string()));
    }
}

/// Answers requests until `shutdown` or the end of stdin.
pub fn answer_requests(script: Script) {
    let (sender, requests) = mpsc::channel();
    let mut conversation = Conversation::new(script);
    let open = conversation.open.clone();
    std::thread::spawn(move || read_requests(&sender, &open));
    for (read_at, request) in requests {
        let stop = match request {
            Ok(request) => conversation.answer(read_at, &request).is_break(),
            Err(_) if has(&conversation.script, "answers_broken_json") => {
                conversation.answer(read_at, &json!({ "prompt": "Hello" })).is_break()
            }
            Err(failed) => {
                conversation.send(&failed);
                false
            }
        };
        if stop {
            break;
        }
    }
    for thread in conversation.threads.drain(..) {
        let _ = thread.join();
    }
    if has(&conversation.script, "ignores_shutdown") || has(&conversation.script, "ignores_sigterm") {
        fault::hang("after the end of stdin");
    }
}

struct Conversation {
    /// The script from the environment and the command line. `load` applies its options to a copy.
    initial: Script,
    script: Arc<Script>,
    launch: Launch,
    is_loaded: bool,
    generate_count: u64,
    open: OpenRequests,
    /// The threads of requests that may overlap.
    threads: Vec<JoinHandle<()>>,
}

impl Conversation {
    fn new(script: Script) -> Self {
        Self {
            script: Arc::new(script.clone()),
            initial: script,
            launch: Launch::begin(),
            is_loaded: false,
            generate_count: 0,
            open: OpenRequests::default(),
            threads: Vec::new(),
        }
    }

    fn answer(&mut self, read_at: Instant, request: &Value) -> ControlFlow<()> {
        let kind =
            if request["type"].is_null() { "generate" } else { request["type"].as_str().unwrap_or("?") };
        let script = Arc::clone(&self.script);
        let supports_only_generate = has(&script, "says_bad_request_to_hello");
        match kind {
            "generate" => self.generate(read_at, request),
            _ if supports_only_generate => {
                self.fail(request, "bad_request", &format!("unknown request type `{kind}`"))
            }
            "hello" if has(&script, "hangs_in_hello") => eprint("fake: hangs in hello\n"),
            "hello" => self.send(&answer::hello(&script)),
            "load" => self.load(read_at, request),
            "score" if has(&script, "hangs_in_score") => fault::hang("in score"),
            "score" if has(&script, "exits_after_failed_score") => {
                self.fail(request, "device", "the device was lost");
                fault::exit(&script, "fake: error: the device was lost\n");
            }
            "score" => self.score(read_at, request),
            "facts" => self.send(&answer::facts(&script)),
            "shutdown" if has(&script, "ignores_shutdown") || has(&script, "ignores_sigterm") => {
                fault::hang("after shutdown")
            }
            "shutdown" => {
                self.send(&json!({ "type": "bye" }));
                return ControlFlow::Break(());
            }
            _ => self.fail(request, "bad_request", &format!("unknown request type `{kind}`")),
        }
        ControlFlow::Continue(())
    }

    fn load(&mut self, read_at: Instant, request: &Value) {
        let mut script = self.initial.clone();
        if let Err(message) = script.apply(request["options"].as_object().unwrap_or(&Map::new())) {
            let kind = if has(&script, "unsupported_option") { "unsupported" } else { "bad_request" };
            return self.fail(request, kind, &message);
        }
        let Some(model) = request["model"].as_str() else {
            return self.fail(request, "bad_request", "`model`: expected a path");
        };
        script.compute_in(rounding::dtype_of(model, request["dtype"].as_str()));
        if has(&script, "hangs_in_load") {
            fault::hang("in load");
        }
        if has(&script, "exits_in_load") {
            fault::exit(&script, "fake: error: shard 2 of 3 is missing\n");
        }
        if has(&script, "fails_in_load") {
            return self.fail(request, "model", "`model.safetensors`: header ends after 12 bytes");
        }
        // `main` has started the grandchild of the initial faults, so only other faults start one here.
        if !self.initial.faults().eq(script.faults()) {
            fault::leave_grandchild(&script);
        }
        self.script = Arc::new(wait_for_load(script, read_at));
        self.is_loaded = true;
        self.send(&answer::loaded(&self.script, request));
    }

    fn generate(&mut self, read_at: Instant, request: &Value) {
        let number = self.generate_count;
        self.generate_count += 1;
        let parsed = match generate::parse(&self.script, request) {
            Ok(parsed) => parsed,
            Err((kind, message)) => {
                self.open.close(&request["id"]);
                return self.fail(request, kind, &message);
            }
        };
        let must_load = !std::mem::replace(&mut self.is_loaded, true);
        if must_load {
            self.script = Arc::new(wait_for_load(self.script.as_ref().clone(), read_at));
        }
        let script = Arc::new(self.script.at_generate(number));
        let loaded = must_load.then(|| answer::loaded(&script, &Value::Null)).map(|mut loaded| {
            loaded.as_object_mut().map(|loaded| loaded.remove("type"));
            loaded
        });
        let (id, open) = (parsed.id.to_string(), self.open.clone());
        let overlaps = !parsed.id.is_null() && script.value("capabilities")["concurrency"].as_u64() > Some(1);
        let launch = self.launch;
        // The protocol allows any number of `progress` messages during a load, so the fault begins with a later request.
        let never_answers = !must_load && has(&script, "progress_without_end");
        let work = move || {
            false_report::leak_memory(&script);
            if never_answers {
                fault::send_progress_without_end();
            }
            let is_cancelled = || open.is_cancelled(&id);
            let context = generate::Context {
                script: &script,
                launch,
                read_at,
                number,
                loaded,
                cancelled: &is_cancelled,
            };
            let line = generate::answer(&context, &parsed);
            match fault::before_answer(&script, &line) {
                Some((kind, message)) => {
                    send(&script, &format!("{}\n", answer::failed(&parsed.id, kind, &message)))
                }
                None => send(&script, &line),
            }
            if has(&script, "duplicate_answer") {
                send(&script, &line);
            }
            open.close(&parsed.id);
        };
        if overlaps {
            self.threads.push(std::thread::spawn(work));
        } else {
            work();
        }
    }

    fn score(&self, read_at: Instant, request: &Value) {
        let ids = |ids: &Value| -> Option<Vec<u64>> { ids.as_array()?.iter().map(Value::as_u64).collect() };
        let sequences: Option<Vec<Vec<u64>>> =
            request["sequences"].as_array().and_then(|sequences| sequences.iter().map(ids).collect());
        let Some(sequences) = sequences.filter(|sequences| sequences.iter().all(|ids| ids.len() > 1)) else {
            return self.fail(request, "bad_request", "`sequences`: expected arrays of two ids or more");
        };
        let logprobs: Vec<_> = sequences.iter().map(|ids| answer::logprobs(&self.script, ids)).collect();
        let ns = read_at.elapsed().as_nanos() as u64;
        let mut scored = json!({ "type": "scored", "logprobs": logprobs, "ns": ns });
        if request["most_likely"] == true && self.script.flag("most_likely") {
            let (ids, logprobs): (Vec<_>, Vec<_>) =
                sequences.iter().map(|ids| answer::most_likely(&self.script, ids)).unzip();
            scored["most_likely_ids"] = json!(ids);
            scored["most_likely_logprobs"] = json!(logprobs);
        }
        if !request["id"].is_null() {
            scored["id"] = request["id"].clone();
        }
        self.send(&scored);
    }

    fn fail(&self, request: &Value, kind: &str, message: &str) {
        self.send(&answer::failed(&request["id"], kind, message));
    }

    fn send(&self, message: &Value) {
        send(&self.script, &format!("{message}\n"));
    }
}

fn send(script: &Script, line: &str) {
    if has(script, "garbage") {
        return fault::print_bytes(b"{\"type\":\"hel\xff\xfe \x01 this is no JSON\n");
    }
    if has(script, "stray_lines") {
        print("Loading checkpoint shards: 50%|#####     |\n\n[INFO] all is well\n");
    }
    print(line);
}

/// Waits for the duration of a load, and reports progress. Returns the script with the actual duration.
fn wait_for_load(mut script: Script, read_at: Instant) -> Script {
    let mut messages = script.count("progress_messages");
    if has(&script, "slow_progress") {
        let load_ns = script.count("load_ns").max(2_000_000_000);
        messages = load_ns / 50_000_000;
        // The setting exists and takes a number, so this cannot fail.
        let _ = script.apply(&Map::from_iter([("load_ns".to_owned(), load_ns.into())]));
    }
    let load_ns = script.count("load_ns");
    false_report::hold_memory(&script);
    for message in 0..=messages {
        if message > 0 {
            let fraction = message as f64 / (messages + 1) as f64;
            let progress = json!({ "type": "progress", "phase": "pretend", "fraction": fraction });
            send(&script, &format!("{progress}\n"));
        }
        let until = Duration::from_nanos(load_ns * (message + 1) / (messages + 1));
        if script.flag("real_sleep") {
            std::thread::sleep(until.saturating_sub(read_at.elapsed()));
        }
    }
    script
}

/// Reads lines until stdin ends. This thread handles `cancel`, because the answering thread is busy with the cancelled request.
fn read_requests(sender: &mpsc::Sender<(Instant, Result<Value, Value>)>, open: &OpenRequests) {
    let mut stdin = std::io::stdin().lock();
    let mut line = Vec::new();
    while stdin.read_until(b'\n', &mut line).is_ok_and(|bytes| bytes > 0) {
        let read_at = Instant::now();
        let request = match serde_json::from_slice::<Value>(&line) {
            _ if line.len() > MAX_LINE_BYTES => Err(format!("a line of {} bytes is too long", line.len())),
            Ok(request) if request.is_object() => Ok(request),
            Ok(_) => Err("expected one JSON object".to_owned()),
            Err(error) => Err(format!("column {}: {error}", error.column())),
        };
        line.clear();
        if request.as_ref().is_ok_and(|request| open.register(request)) {
            continue;
        }
        let request = request.map_err(|message| answer::failed(&Value::Null, "bad_request", &message));
        if sender.send((read_at, request)).is_err() {
            return;
        }
    }
}
