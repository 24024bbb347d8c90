//! Real engines, used through the protocol without the orchestrator, and the differences of their outputs.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Condvar, Mutex, PoisonError};

use model_files::Format;
use protocol::{
    Facts, Failed, Generate, Generated, Hello, HelloFacts, IgnoreEos, Load, Message, Output, Request, Score,
};

use crate::support::{Running, Scratch, finish, root};

/// The number of tests that hold a slot.
static TAKEN_SLOTS: (Mutex<usize>, Condvar) = (Mutex::new(0), Condvar::new());
/// There is at most one slot for each core, because engines that share a core slow each other down. More than two tests at a
/// time would need too much memory.
const MAX_SLOTS: usize = 2;
/// The length of the output of `Engine::generate`.
pub const GENERATED_TOKENS: u32 = 48;

/// A slot for the engines of one test. Dropping it frees the slot.
pub struct Slot;

/// Waits for a free slot and takes it.
pub fn slot() -> Slot {
    let (taken, freed) = &TAKEN_SLOTS;
    let slots = std::thread::available_parallelism().map_or(1, |cores| cores.get().min(MAX_SLOTS));
    let taken = taken.lock().unwrap();
    *freed.wait_while(taken, |taken| *taken >= slots).unwrap() += 1;
    Slot
}

impl Drop for Slot {
    fn drop(&mut self) {
        let (taken, freed) = &TAKEN_SLOTS;
        // A test that failed while it held the lock does not stop the other tests.
        *taken.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        freed.notify_one();
    }
}

pub struct Engine {
    pub name: String,
    /// The engine's facts and capabilities.
    pub hello: HelloFacts,
    process: Running,
    /// Dropping the folder ends the engine and its processes.
    _scratch: Scratch,
}

/// The result of a load, and the engine's messages during it.
#[derive(Debug)]
pub struct LoadOutcome {
    pub facts: Facts,
    notes: Vec<String>,
}

impl LoadOutcome {
    /// Whether the engine reported that it ignores a part of the model, so that its outputs differ.
    pub fn reports_different_outputs(&self) -> bool {
        self.notes.iter().any(|note| note.contains("outputs differ"))
    }
}

impl Engine {
    pub fn start(name: &str) -> Self {
        let scratch = Scratch::new();
        let mut command = with_user_setup(scratch.command(binary(name)));
        command.env("ORCHESTRATE_THREADS", "1");
        let process = Running::start(command.stdin(Stdio::piped()));
        let mut engine = Self { name: name.into(), hello: HelloFacts::default(), process, _scratch: scratch };
        engine.send(&Request::Hello(Hello { protocol: protocol::version::CURRENT }));
        engine.hello = match engine.next_message() {
            Message::Hello(facts) => facts,
            other => panic!("{name}: {other:?}"),
        };
        engine
    }

    /// Starts every engine in the tree that computes on the CPU, the reference first.
    pub fn start_all() -> Vec<Self> {
        engines_in_tree().iter().filter(|name| !needs_driver(name)).map(|name| Self::start(name)).collect()
    }

    /// Loads a model in place of an earlier one. The engine computes with one thread.
    pub fn load(&mut self, model: &Path, dtype: Option<&str>) -> Result<LoadOutcome, Failed> {
        let model = model.to_string_lossy().into_owned();
        self.request_load(Load { model, dtype: dtype.map(str::to_string), ..Load::default() })
    }

    /// Loads a model with a load option, as `--set` gives it: every value is a text.
    pub fn load_with_option(
        &mut self,
        model: &Path,
        (name, value): (&str, &str),
    ) -> Result<LoadOutcome, Failed> {
        let model = model.to_string_lossy().into_owned();
        let options = [(name.to_string(), value.into())].into_iter().collect();
        self.request_load(Load { model, options, ..Load::default() })
    }

    /// Loads a model in f32, with the options of the engine's preset in f32 if it has one: without them, the engine may keep
    /// keys and values in a narrower dtype.
    pub fn load_in_f32(&mut self, model: &Path) -> Result<LoadOutcome, Failed> {
        let manifest = manifest(&self.name);
        let presets = manifest["presets"].as_table().unwrap();
        let in_f32 =
            presets.values().find(|preset| preset.get("dtype").is_some_and(|it| it.as_str() == Some("f32")));
        let options = in_f32.and_then(|preset| preset.get("options"));
        let options = options.map_or_else(Default::default, |it| serde_json::to_value(it).unwrap());
        let options = options.as_object().cloned().unwrap_or_default();
        let model = model.to_string_lossy().into_owned();
        self.request_load(Load { model, dtype: Some("f32".into()), options, ..Load::default() })
    }

    fn request_load(&mut self, load: Load) -> Result<LoadOutcome, Failed> {
        self.send(&Request::Load(Load { threads: Some(1), ..load }));
        let mut notes = Vec::new();
        loop {
            match self.next_message() {
                Message::Progress(progress) => notes.extend(progress.note),
                Message::Loaded(loaded) => return Ok(LoadOutcome { facts: loaded.facts, notes }),
                Message::Failed(failed) => return Err(failed),
                other => panic!("{}: {other:?}", self.name),
            }
        }
    }

    /// The ids of `GENERATED_TOKENS` greedy tokens after the prompt.
    pub fn generate(&mut self, prompt: &[u32]) -> Vec<u32> {
        self.continued(prompt, GENERATED_TOKENS)
    }

    /// The id of the likeliest token after the prompt.
    pub fn next_token(&mut self, prompt: &[u32]) -> u32 {
        self.continued(prompt, 1)[0]
    }

    fn continued(&mut self, prompt: &[u32], max_new_tokens: u32) -> Vec<u32> {
        let prompt_ids = Some(prompt.into());
        let request = Generate { prompt_ids, max_new_tokens, ignore_eos: true, ..Generate::default() };
        self.prompt_tokens_and_ids(request).1
    }

    /// Whether the engine takes ids as a prompt, generates an exact number of tokens, and returns their ids.
    pub fn uses_ids(&self) -> bool {
        let can = &self.hello.capabilities;
        can.prompt_ids && can.ignore_eos == IgnoreEos::Exact && self.gives_ids()
    }

    /// Whether the engine returns ids, and not only text.
    pub fn gives_ids(&self) -> bool {
        self.hello.output == Output::Ids
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

    /// The number of tokens of the prompt, and the generated ids.
    pub fn prompt_tokens_and_ids(&mut self, request: Generate) -> (u32, Vec<u32>) {
        let sequence = self.generated(request).iterations.remove(0).sequences.remove(0);
        (sequence.prompt_tokens, sequence.output_ids.unwrap())
    }

    /// The log-probability of `a` less the log-probability of `b` after the same ids.
    pub fn logprob_difference(&mut self, after: &[u32], a: u32, b: u32) -> f64 {
        let [a, b] = [a, b].map(|id| self.score(&[after, &[id]].concat()).pop().unwrap().unwrap());
        a - b
    }

    pub fn generated(&mut self, request: Generate) -> Generated {
        self.send(&Request::Generate(request));
        loop {
            match self.next_message() {
                Message::Progress(_) => {}
                Message::Generated(generated) => return generated,
                other => panic!("{}: {other:?}", self.name),
            }
        }
    }

    /// The log-probability of each id after the first. `None` is minus infinity.
    pub fn score(&mut self, ids: &[u32]) -> Vec<Option<f64>> {
        self.send(&Request::Score(Score { sequences: vec![ids.into()], ..Score::default() }));
        match self.next_message() {
            Message::Scored(mut scored) => scored.logprobs.remove(0),
            other => panic!("{}: {other:?}", self.name),
        }
    }

    /// The `failed` that answers an invalid line.
    pub fn refusal(&mut self, line: &[u8]) -> Failed {
        self.write(&[line, b"\n"].concat());
        match self.next_message() {
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

    fn next_message(&mut self) -> Message {
        let line = self.process.line();
        let show = || String::from_utf8_lossy(&line[..line.len().min(200)]).into_owned();
        protocol::parse_message(&line).unwrap_or_else(|refused| panic!("{}: {}", refused.message, show()))
    }
}

/// The names of all engines in the tree, the reference first. An engine that needs an option, such as the URL of a server, has only
/// tests of its own.
pub fn engines_in_tree() -> Vec<String> {
    let folders = std::fs::read_dir(root().join("engines")).unwrap().flatten().map(|folder| folder.path());
    let with_manifest = folders.filter(|folder| folder.join("engine.toml").is_file());
    let mut names: Vec<_> =
        with_manifest.map(|folder| folder.file_name().unwrap().to_string_lossy().into_owned()).collect();
    names.retain(|name| manifest(name)["load"].get("needs_one_of").is_none());
    assert!(names.len() > 1, "{names:?}");
    names.sort_by_key(|name| (!is_reference(name), name.clone()));
    assert!(
        is_reference(&names[0]) && !is_reference(&names[1]),
        "exactly one engine must be the reference: {names:?}"
    );
    names
}

/// The engine whose manifest has `reference = true`.
pub fn reference() -> String {
    engines_in_tree().remove(0)
}

/// The first engine in the tree that computes on the CPU and needs no Python environment.
pub fn engine_without_environment() -> String {
    let needs_nothing = |name: &String| !needs_driver(name) && !manifest(name).contains_key("environment");
    engines_in_tree().into_iter().find(needs_nothing).expect("an engine that cargo alone builds")
}

/// Passes on the user's data directory and cargo's target directory, in which the engines are set up.
pub fn with_user_setup(mut command: Command) -> Command {
    for name in ["ORCHESTRATE_HOME", "CARGO_TARGET_DIR"] {
        match std::env::var_os(name) {
            Some(folder) => command.env(name, folder),
            None => command.env_remove(name),
        };
    }
    command
}

/// Checks that an engine is set up; if not, the test fails. A path is not in the list of engines and needs no set-up.
pub fn assert_is_ready(name: &str) {
    let listed =
        finish(with_user_setup(Scratch::new().orchestrate()).arg("engines").current_dir(root())).stdout;
    let is_engine = |line: &&str| line.split([':', ' ']).next() == Some(name);
    let line = listed.lines().find(is_engine);
    let ready = line.is_none_or(|line| line.ends_with(": ready"));
    assert!(
        ready,
        "{}\nhint: cargo run --release -- setup {name}   (or scripts/check --full, which sets up all engines)",
        line.unwrap()
    );
}

pub fn binary(name: &str) -> PathBuf {
    assert_is_ready(name);
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |dir| root().join(dir));
    target.join("release").join(manifest(name)["binary"].as_str().unwrap())
}

/// Whether the engine computes only on NVIDIA GPUs.
pub fn needs_driver(name: &str) -> bool {
    manifest(name).get("needs").is_some_and(|needs| needs.get("driver").is_some())
}

fn is_reference(name: &str) -> bool {
    manifest(name).get("reference").and_then(toml::Value::as_bool).unwrap_or(false)
}

pub fn manifest(name: &str) -> toml::Table {
    let manifest = std::fs::read_to_string(root().join("engines").join(name).join("engine.toml")).unwrap();
    manifest.parse().unwrap()
}

// Differences of outputs.

/// The bounds on differences of log-probabilities (natural logarithms): the median, and the largest.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    pub median: f64,
    pub max: f64,
}

/// The bounds for engines that compute with the same weights in this float dtype. Engines in f32 differ by the order of
/// additions; engines in narrower floats also by rounding.
pub fn float_bounds(dtype: &str) -> Bounds {
    match dtype {
        "f32" => Bounds { median: 1e-4, max: 1e-3 },
        "f16" => Bounds { median: 4e-3, max: 0.02 },
        "bf16" => Bounds { median: 0.025, max: 0.1 },
        other => panic!("the bounds for `{other}` are not known"),
    }
}

/// The bounds for quantized weights compared with the same weights in f32. Kernels for quantized weights also round activations
/// to 8 bits. With candle's kernels, the median is up to 0.02 and the largest difference up to 0.09; the rounding of weights
/// to 4 bits would give 0.2 and 0.9.
pub const QUANTIZED: Bounds = Bounds { median: 0.04, max: 0.18 };

/// The least precise of the dtypes that an engine reports for computing and for the KV cache.
pub fn least_precise(facts: &Facts) -> &str {
    let dtypes = [&facts.compute_dtype, &facts.kv_dtype].into_iter().flatten().map(String::as_str);
    dtypes.max_by(|a, b| float_bounds(a).max.total_cmp(&float_bounds(b).max)).unwrap_or("f32")
}

/// The absolute differences between two lists of log-probabilities: the median, and the largest.
#[derive(Debug, Clone, Copy)]
pub struct Difference {
    pub median: f64,
    pub max: f64,
}

impl Difference {
    pub fn of(a: &[Option<f64>], b: &[Option<f64>]) -> Self {
        assert_eq!(a.len(), b.len());
        // `None` is minus infinity, the log-probability of an impossible token. No model in these tests gives it.
        let differences = a.iter().zip(b).map(|(a, b)| (a.unwrap() - b.unwrap()).abs());
        let mut differences: Vec<f64> = differences.collect();
        differences.sort_by(f64::total_cmp);
        Self { median: differences[differences.len() / 2], max: differences[differences.len() - 1] }
    }

    pub fn is_within(self, bounds: Bounds) -> bool {
        self.median <= bounds.median && self.max <= bounds.max
    }
}

#[track_caller]
pub fn assert_agree(a: &[Option<f64>], b: &[Option<f64>], bounds: Bounds, context: &str) {
    let difference = Difference::of(a, b);
    assert!(difference.is_within(bounds), "{context}: {difference:?}, allowed: {bounds:?}");
}
