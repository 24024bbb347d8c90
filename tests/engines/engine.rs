//! The engines in the tree, used through the protocol and without the orchestrator; and the difference of their outputs.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Condvar, Mutex, PoisonError};

use model_files::Format;
use protocol::{
    Facts, Failed, Generate, Generated, Hello, HelloFacts, IgnoreEos, Load, Message, Output, Request, Score,
};

use crate::support::{Running, Scratch, finish, root};

/// Engines that share a core slow each other down. Each computes with one thread, so two tests fit on two cores.
/// More at once would need the memory of all their engines.
static AT_ONCE: (Mutex<usize>, Condvar) = (Mutex::new(0), Condvar::new());
const MOST_AT_ONCE: usize = 2;

/// A slot for the engines of one test, released when it is dropped.
pub struct Slot;

pub fn slot() -> Slot {
    let (taken, freed) = &AT_ONCE;
    let most = std::thread::available_parallelism().map_or(1, |cores| cores.get().min(MOST_AT_ONCE));
    let taken = taken.lock().unwrap();
    *freed.wait_while(taken, |taken| *taken >= most).unwrap() += 1;
    Slot
}

impl Drop for Slot {
    fn drop(&mut self) {
        let (taken, freed) = &AT_ONCE;
        // A failed test does not affect the next one.
        *taken.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        freed.notify_one();
    }
}

pub struct Engine {
    pub name: String,
    /// The engine's facts and capabilities.
    pub hello: HelloFacts,
    process: Running,
    /// Ends the engine and its processes.
    _scratch: Scratch,
}

/// The result of a load, and the engine's messages during it.
#[derive(Debug)]
pub struct LoadOutcome {
    pub facts: Facts,
    notes: Vec<String>,
}

impl LoadOutcome {
    /// Whether the engine loaded a model that it does not compute in full, and reported that.
    pub fn says_that_outputs_differ(&self) -> bool {
        self.notes.iter().any(|note| note.contains("outputs differ"))
    }
}

impl Engine {
    pub fn start(name: &str) -> Self {
        let scratch = Scratch::new();
        let mut command = at_home(scratch.marked(binary(name)));
        command.env("ORCHESTRATE_THREADS", "1");
        let process = Running::start(command.stdin(Stdio::piped()));
        let mut engine = Self { name: name.into(), hello: HelloFacts::default(), process, _scratch: scratch };
        engine.send(&Request::Hello(Hello { protocol: protocol::version::CURRENT }));
        engine.hello = match engine.message() {
            Message::Hello(facts) => facts,
            other => panic!("{name}: {other:?}"),
        };
        engine
    }

    /// Every engine in the tree that computes on the processor, the reference first.
    pub fn all() -> Vec<Self> {
        in_tree().iter().filter(|name| !needs_driver(name)).map(|name| Self::start(name)).collect()
    }

    /// Loads a model in place of the one before, with one thread.
    pub fn load(&mut self, model: &Path, dtype: Option<&str>) -> Result<LoadOutcome, Failed> {
        let model = model.to_string_lossy().into_owned();
        let dtype = dtype.map(str::to_string);
        self.send(&Request::Load(Load { model, dtype, threads: Some(1), ..Load::default() }));
        let mut notes = Vec::new();
        loop {
            match self.message() {
                Message::Progress(progress) => notes.extend(progress.note),
                Message::Loaded(loaded) => return Ok(LoadOutcome { facts: loaded.facts, notes }),
                Message::Failed(failed) => return Err(failed),
                other => panic!("{}: {other:?}", self.name),
            }
        }
    }

    /// 48 greedy tokens.
    pub fn generate(&mut self, prompt: &[u32]) -> Vec<u32> {
        self.continued(prompt, 48)
    }

    /// The likeliest token.
    pub fn next(&mut self, prompt: &[u32]) -> u32 {
        self.continued(prompt, 1)[0]
    }

    fn continued(&mut self, prompt: &[u32], max_new_tokens: u32) -> Vec<u32> {
        let prompt_ids = Some(prompt.into());
        self.tokens(Generate { prompt_ids, max_new_tokens, ignore_eos: true, ..Generate::default() }).1
    }

    /// Whether the engine takes ids as a prompt, generates an exact number of tokens, and returns their ids.
    pub fn speaks_ids(&self) -> bool {
        let can = &self.hello.capabilities;
        can.prompt_ids && can.ignore_eos == IgnoreEos::Exact && self.hello.output == Output::Ids
    }

    pub fn claims(&self, architecture: &str) -> bool {
        self.hello.capabilities.architectures.iter().any(|claimed| claimed == architecture)
    }

    pub fn reads(&self, format: Format) -> bool {
        self.hello.capabilities.formats.iter().any(|claimed| claimed == format.as_str())
    }

    pub fn scores(&self) -> bool {
        self.hello.capabilities.score
    }

    /// The number of tokens of the prompt, and the ids after it.
    pub fn tokens(&mut self, request: Generate) -> (u32, Vec<u32>) {
        let sequence = self.generated(request).iterations.remove(0).sequences.remove(0);
        (sequence.prompt_tokens, sequence.output_ids.unwrap())
    }

    /// The difference of the log-probabilities of two ids after the same ids.
    pub fn lead(&mut self, after: &[u32], one: u32, other: u32) -> f64 {
        let [one, other] =
            [one, other].map(|id| self.score(&[after, &[id]].concat()).pop().unwrap().unwrap());
        one - other
    }

    pub fn generated(&mut self, request: Generate) -> Generated {
        self.send(&Request::Generate(request));
        loop {
            match self.message() {
                Message::Progress(_) => {}
                Message::Generated(generated) => return generated,
                other => panic!("{}: {other:?}", self.name),
            }
        }
    }

    /// The log-probability of each id after the first. Minus infinity is `None`.
    pub fn score(&mut self, ids: &[u32]) -> Vec<Option<f64>> {
        self.send(&Request::Score(Score { id: None, sequences: vec![ids.into()] }));
        match self.message() {
            Message::Scored(mut scored) => scored.logprobs.remove(0),
            other => panic!("{}: {other:?}", self.name),
        }
    }

    /// The `failed` that answers a broken line.
    pub fn refusal(&mut self, line: &[u8]) -> Failed {
        self.write(&[line, b"\n"].concat());
        match self.message() {
            Message::Failed(failed) => failed,
            other => panic!("{}: {other:?}", self.name),
        }
    }

    fn send(&mut self, request: &Request) {
        self.write(&protocol::encode(request));
    }

    fn write(&mut self, line: &[u8]) {
        self.process.stdin.as_mut().unwrap().write_all(line).unwrap();
    }

    fn message(&mut self) -> Message {
        let line = self.process.line();
        let show = || String::from_utf8_lossy(&line[..line.len().min(200)]).into_owned();
        protocol::parse_message(&line).unwrap_or_else(|refused| panic!("{}: {}", refused.message, show()))
    }
}

/// The names of all engines in the tree, the reference first.
pub fn in_tree() -> Vec<String> {
    let folders = std::fs::read_dir(root().join("engines")).unwrap().flatten().map(|folder| folder.path());
    let with_manifest = folders.filter(|folder| folder.join("engine.toml").is_file());
    let mut names: Vec<_> =
        with_manifest.map(|folder| folder.file_name().unwrap().to_string_lossy().into_owned()).collect();
    assert!(names.len() > 1, "{names:?}");
    names.sort_by_key(|name| (!is_reference(name), name.clone()));
    assert!(is_reference(&names[0]) && !is_reference(&names[1]), "one engine is the reference: {names:?}");
    names
}

/// The engine that ratios are taken against.
pub fn reference() -> String {
    in_tree().remove(0)
}

/// The first engine in the tree that computes on the processor and needs no Python environment.
pub fn without_environment() -> String {
    let found = |name: &String| !needs_driver(name) && !manifest(name).contains_key("environment");
    in_tree().into_iter().find(found).expect("an engine that cargo alone builds")
}

/// Adds the user's own data directory and cargo's own target directory: they have the set-up.
pub fn at_home(mut command: Command) -> Command {
    for name in ["ORCHESTRATE_HOME", "CARGO_TARGET_DIR"] {
        match std::env::var_os(name) {
            Some(folder) => command.env(name, folder),
            None => command.env_remove(name),
        };
    }
    command
}

/// A missing engine is no reason to skip a test.
pub fn assert_is_ready(name: &str) {
    let listed = finish(at_home(Scratch::new().orchestrate()).arg("engines").current_dir(root())).stdout;
    let of = |line: &&str| line.split([':', ' ']).next() == Some(name);
    let line = listed.lines().find(of);
    let ready = line.is_none_or(|line| line.ends_with(": ready"));
    assert!(
        ready,
        "{}\nhint: cargo run --release -- setup {name}   (or scripts/check --full, which does it first)",
        line.unwrap()
    );
}

pub fn binary(name: &str) -> PathBuf {
    assert_is_ready(name);
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |dir| root().join(dir));
    target.join("release").join(manifest(name)["binary"].as_str().unwrap())
}

/// Whether it computes on NVIDIA's GPUs alone.
pub fn needs_driver(name: &str) -> bool {
    manifest(name).get("needs").is_some_and(|needs| needs.get("driver").is_some())
}

fn is_reference(name: &str) -> bool {
    manifest(name).get("reference").and_then(toml::Value::as_bool).unwrap_or(false)
}

fn manifest(name: &str) -> toml::Table {
    let manifest = std::fs::read_to_string(root().join("engines").join(name).join("engine.toml")).unwrap();
    manifest.parse().unwrap()
}

// The difference of outputs.

/// The bounds on differences of log-probabilities (natural logarithms): the median, and the largest.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    pub median: f64,
    pub most: f64,
}

/// The bounds for engines that compute with the same weights in this float dtype. Engines in f32 differ by the order of
/// additions; engines in narrower floats also by rounding.
pub fn float_bounds(dtype: &str) -> Bounds {
    match dtype {
        "f32" => Bounds { median: 1e-4, most: 1e-3 },
        "f16" => Bounds { median: 4e-3, most: 0.02 },
        "bf16" => Bounds { median: 0.025, most: 0.1 },
        other => panic!("the bounds for `{other}` are not known"),
    }
}

/// The bounds for quantised weights against the same numbers in f32. Kernels for quantised weights also round activations to
/// 8 bits, block by block. candle's kernels reach 0.02 and 0.09; the error of a 4-bit quantisation would be 0.2 and 0.9.
pub const QUANTISED: Bounds = Bounds { median: 0.04, most: 0.18 };

/// The least precise of the dtypes that an engine reports for computing and for the KV cache.
pub fn least_precise(facts: &Facts) -> &str {
    let dtypes = [&facts.compute_dtype, &facts.kv_dtype].into_iter().flatten().map(String::as_str);
    dtypes.max_by(|one, other| float_bounds(one).most.total_cmp(&float_bounds(other).most)).unwrap_or("f32")
}

/// The difference between two lists of log-probabilities.
#[derive(Debug, Clone, Copy)]
pub struct Difference {
    pub median: f64,
    pub most: f64,
}

impl Difference {
    pub fn of(one: &[Option<f64>], other: &[Option<f64>]) -> Self {
        assert_eq!(one.len(), other.len());
        // `None` means minus infinity, a probability of zero, which no model here gives.
        let differences = one.iter().zip(other).map(|(one, other)| (one.unwrap() - other.unwrap()).abs());
        let mut differences: Vec<f64> = differences.collect();
        differences.sort_by(f64::total_cmp);
        Self { median: differences[differences.len() / 2], most: differences[differences.len() - 1] }
    }

    pub fn is_within(self, bounds: Bounds) -> bool {
        self.median <= bounds.median && self.most <= bounds.most
    }
}

#[track_caller]
pub fn assert_agree(one: &[Option<f64>], other: &[Option<f64>], bounds: Bounds, who: &str) {
    let difference = Difference::of(one, other);
    assert!(difference.is_within(bounds), "{who}: {difference:?}, and allowed is {bounds:?}");
}
