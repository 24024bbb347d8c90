//! One `generate`: reads the request, waits for the scripted times, and makes the answer.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::answer::{self, EOS};
use crate::effects::Launch;
use crate::false_report;
use crate::fault::{self, has};
use crate::kept_answers::{self, Answers};
use crate::kept_prompts;
use crate::script::Script;
use crate::text;

/// A valid request.
pub struct Generate {
    pub id: Value,
    prompts: Vec<Vec<u64>>,
    max_new_tokens: u64,
    iterations: u64,
    warmup: u64,
    ignore_eos: bool,
    stream: bool,
    /// Whether tokens are drafted, so that a step gives several of them.
    drafts: bool,
    prefix_cache: bool,
    /// 0 for greedy decoding, otherwise 1 more than the seed.
    salt: u64,
}

/// The script and the state of the process in which a request is answered.
pub struct Context<'a> {
    pub script: &'a Script,
    pub launch: Launch,
    /// The time at which the request line was read.
    pub read_at: Instant,
    /// The number of this `generate` in its process, counted from 0.
    pub number: u64,
    /// The facts of the load, if this request causes one.
    pub loaded: Option<Value>,
    pub cancelled: &'a dyn Fn() -> bool,
}

/// Parses a request. `Err` is the kind and the message of a `failed`.
pub fn parse(script: &Script, request: &Value) -> Result<Generate, (&'static str, String)> {
    let bad = |field: &str, expected: &str| ("bad_request", format!("`{field}`: expected {expected}"));
    let fields = ["prompt", "prompt_ids", "prompts", "prompts_ids"];
    let given: Vec<&str> = fields.into_iter().filter(|field| !request[field].is_null()).collect();
    let [field] = given[..] else {
        return Err(("bad_request", format!("exactly one of `{}` is needed", fields.join("`, `"))));
    };
    let parse_prompt = |value: &Value| match value {
        Value::String(text) if !field.ends_with("_ids") => Some(text::ids_of(script, text)),
        Value::Array(ids) if field.ends_with("_ids") => ids.iter().map(Value::as_u64).collect(),
        _ => None,
    };
    let parsed = match &request[field] {
        value if !field.starts_with("prompts") => parse_prompt(value).map(|prompt| vec![prompt]),
        value => value.as_array().and_then(|values| values.iter().map(parse_prompt).collect()),
    };
    let prompts: Vec<Vec<u64>> = parsed.ok_or_else(|| bad(field, "text or ids"))?;
    if prompts.is_empty() || prompts.iter().any(Vec::is_empty) {
        return Err(bad(field, "at least one token"));
    }
    let number = |field: &str, default: u64, min: u64| match &request[field] {
        Value::Null => Ok(default),
        value => value.as_u64().filter(|&n| (min..=1_000_000).contains(&n)).ok_or(field.to_owned()),
    };
    let counts =
        || Ok((number("max_new_tokens", 32, 1)?, number("iterations", 1, 1)?, number("warmup", 0, 0)?));
    let (max_new_tokens, iterations, warmup) =
        counts().map_err(|field: String| bad(&field, "a number from 1 (`warmup`: 0) to 1000000"))?;
    if !has(script, "accepts_large_integers") {
        refuse_large_integers(request)?;
    }
    let longest = prompts.iter().map(Vec::len).max().unwrap_or(0) as u64;
    let limit = script.count("context_tokens");
    let exceeds_context = || {
        let message =
            format!("{longest} prompt tokens and {max_new_tokens} new tokens exceed the context of {limit}");
        if longest + max_new_tokens > limit { Err(("context", message)) } else { Ok(()) }
    };
    if has(script, "checks_context_first") {
        exceeds_context()?;
    }
    if !has(script, "ignores_capabilities") {
        refuse_unclaimed(script, field, request)?;
    }
    exceeds_context()?;
    let sampled = request["sampling"]["temperature"].as_f64().is_some_and(|temperature| temperature > 0.0);
    Ok(Generate {
        id: request["id"].clone(),
        prompts,
        max_new_tokens,
        iterations,
        warmup,
        ignore_eos: request["ignore_eos"] == true,
        stream: request["stream"] == true,
        drafts: request["speculation"] == "prompt_lookup" || has(script, "unrequested_drafts"),
        prefix_cache: request["prefix_cache"] == true || has(script, "uses_prefixes_always"),
        salt: if sampled { 1 + request["sampling"]["seed"].as_u64().unwrap_or(0) } else { 0 },
    })
}

/// Refuses an id or a seed that JavaScript would round.
fn refuse_large_integers(request: &Value) -> Result<(), (&'static str, String)> {
    const LARGEST: u64 = (1 << 53) - 1;
    let numbers = [("id", &request["id"]), ("seed", &request["sampling"]["seed"])];
    match numbers.into_iter().find(|(_, number)| number.as_u64().is_some_and(|number| number > LARGEST)) {
        Some((field, _)) => Err(("bad_request", format!("`{field}`: expected at most {LARGEST}"))),
        None => Ok(()),
    }
}

/// Refuses a request that needs a capability which `hello` does not claim.
fn refuse_unclaimed(script: &Script, field: &str, request: &Value) -> Result<(), (&'static str, String)> {
    let hello = answer::hello(script);
    let claims = |name: &str| ![json!(false), json!([])].contains(&hello["capabilities"][name]);
    let prompt = if field.ends_with("_ids") { "prompt_ids" } else { "prompt" };
    let needed = [
        (prompt, true),
        ("stream", request["stream"] == true),
        ("ignore_eos", request["ignore_eos"] == true),
        ("sampling", request["sampling"]["temperature"].as_f64().is_some_and(|it| it > 0.0)),
        ("speculation", request["speculation"] == "prompt_lookup"),
    ];
    match needed.into_iter().find(|(name, is_needed)| *is_needed && !claims(name)) {
        Some((name, _)) => Err(("unsupported", format!("`{name}` is not supported"))),
        None => Ok(()),
    }
}

/// Waits for the scripted times, streams tokens if requested, and returns the answer's line.
pub fn answer(context: &Context, request: &Generate) -> String {
    let _busy = false_report::BusyThreads::start(context.script);
    let load_ns = context.loaded.as_ref().map_or(0, |_| context.script.count("load_ns"));
    let mut now_ns = load_ns + context.script.count("start_ns");
    let mut indexes = 0..; // Warm-up iterations count too.
    let mut iterate = |count: u64| -> Vec<Value> {
        let factors =
            indexes.by_ref().map(|index| context.launch.factor(context.script, context.number, index));
        (0..count)
            .zip(factors)
            .map(|(number, factor)| iteration(context, request, number, factor, &mut now_ns))
            .collect()
    };
    let (warmup_iterations, iterations) = (iterate(request.warmup), iterate(request.iterations));
    let mut generated = json!({ "type": "generated", "iterations": iterations });
    if !warmup_iterations.is_empty() {
        generated["warmup_iterations"] = warmup_iterations.into();
    }
    if !request.id.is_null() {
        generated["id"] = request.id.clone();
    }
    if let Some(loaded) = &context.loaded {
        generated["loaded"] = loaded.clone();
    }
    if let Some(memory) = answer::device_memory(context.script) {
        generated["device_memory"] = memory;
    }
    false_report::change_answer(context.script, &mut generated);
    if !request.stream {
        false_report::make_times_early(context.script, &mut generated);
    }
    if has(context.script, "wrong_id") {
        generated["id"] = if request.id.is_string() { "another".into() } else { 999_999.into() };
    }
    let line = format!("{generated}\n");
    // JSON has no NaN, but some JSON writers emit it.
    if has(context.script, "nan_end_ns") {
        line.replace("\"end_ns\":", "\"end_ns\":NaN,\"was\":")
    } else {
        line
    }
}

/// Runs one iteration. `factor` multiplies the scripted time of each token.
fn iteration(context: &Context, request: &Generate, number: u64, factor: f64, now_ns: &mut u64) -> Value {
    let script = context.script;
    let salt = request.salt + if has(script, "nondeterministic") { context.number << 32 } else { 0 };
    let computed: Vec<Vec<u64>> =
        request.prompts.iter().map(|prompt| false_report::computed_part(script, prompt)).collect();
    let compute = || -> Vec<Vec<u64>> {
        let (max_new_tokens, ignore_eos) = (request.max_new_tokens, request.ignore_eos);
        let output = |prompt: &Vec<u64>| answer::output_ids(script, prompt, max_new_tokens, ignore_eos, salt);
        computed.iter().map(output).collect()
    };
    let settings = [request.max_new_tokens, u64::from(request.ignore_eos), salt];
    let Answers { mut outputs, factor: factor_of_kept } =
        kept_answers::read_or_compute(script, &request.prompts, settings, compute);
    outputs.iter_mut().for_each(|ids| false_report::add_id(script, ids));
    let wrong = script.value("wrong_sequence").as_u64().and_then(|index| outputs.get_mut(index as usize));
    wrong.into_iter().flatten().for_each(|id| *id = answer::other_id(script, *id));
    let factor = factor * factor_of_kept * false_report::factor_of_repeated_prompts(script, &request.prompts);
    let streams = request.stream || has(script, "streams_unrequested");
    let start_ns = *now_ns;
    let cached: Vec<Option<usize>> = request
        .prompts
        .iter()
        .map(|prompt| kept_prompts::cached(script, prompt, request.prefix_cache))
        .collect();
    let lengths = computed
        .iter()
        .zip(&cached)
        .map(|(prompt, cached)| prompt.len() - cached.unwrap_or(0).min(prompt.len()));
    let longest_prompt = lengths.max().unwrap_or(0) as u64;
    let scaled = |ns: u64| (ns as f64 * factor).round() as u64;
    let prefill_ns = script.count("first_token_ns") + longest_prompt * script.count("per_prompt_token_ns");
    let first_ns = start_ns + scaled(prefill_ns);
    let steps = outputs.iter().map(Vec::len).max().unwrap_or(0);
    let drafts = Drafts::of(script, request);
    let mut times: Vec<u64> = Vec::new();
    while times.len() < steps {
        let ns = first_ns + scaled(drafts.steps(times.len() as u64) * script.count("per_token_ns"));
        // Without a stream, the waits for the first token and for the end are enough, unless token times are so long that a
        // request may be cancelled between them.
        let must_wait = streams || script.count("per_token_ns") > 1_000_000 || times.is_empty();
        if must_wait && !wait(context, ns) {
            break;
        }
        times.push(ns);
        *now_ns = ns;
        if streams && !has(script, "bunched_times") {
            let reported_ns = false_report::reported_ns(script, start_ns, ns);
            stream(context, request, number, times.len() - 1, &outputs, reported_ns);
        }
    }
    if has(script, "bunched_times") {
        false_report::bunch_times(&mut times);
        for (index, ns) in times.iter().enumerate().filter(|_| streams) {
            stream(context, request, number, index, &outputs, *ns);
        }
    }
    let is_cancelled = times.len() < steps || (context.cancelled)();
    *now_ns += script.count("end_ns");
    if is_cancelled {
        *now_ns = (*now_ns).min(context.read_at.elapsed().as_nanos() as u64).max(start_ns);
    } else {
        wait(context, *now_ns);
    }
    let sequences: Vec<Value> = (request.prompts.iter().zip(&outputs).zip(cached))
        .map(|((prompt, ids), cached)| {
            let generated = ids.len().min(times.len());
            let finish = match ids[..generated].last() {
                _ if is_cancelled => "cancelled",
                Some(&EOS) if !request.ignore_eos || has(script, "ends_at_early_eos") => "eos",
                _ => "length",
            };
            let mut sequence =
                answer::sequence(script, prompt, &ids[..generated], &times[..generated], finish);
            drafts.count(&mut sequence, generated as u64);
            if let Some(cached) = cached {
                sequence["cached_prompt_tokens"] = cached.into();
                kept_prompts::keep(prompt, &ids[..generated], request.prefix_cache);
            }
            sequence
        })
        .collect();
    let mut iteration = json!({ "start_ns": start_ns, "end_ns": *now_ns, "sequences": sequences });
    answer::make_times_wrong(script, &mut iteration);
    iteration
}

/// The drafts of a request: each step after the first token checks one, and gives the accepted tokens and one more.
struct Drafts {
    /// `None` if the request has no drafts.
    length: Option<u64>,
    accepted: u64,
    is_counted: bool,
}

impl Drafts {
    fn of(script: &Script, request: &Generate) -> Self {
        let length = script.count("draft_length");
        let accepted = if request.drafts { script.count("accepted_of_draft").min(length) } else { 0 };
        let is_counted = !has(script, "uncounted_drafts");
        Self { length: request.drafts.then_some(length), accepted, is_counted }
    }

    /// The steps after the first token until this number of later tokens is there.
    fn steps(&self, later_tokens: u64) -> u64 {
        later_tokens.div_ceil(self.accepted + 1)
    }

    fn count(&self, sequence: &mut Value, generated: u64) {
        let Some(length) = self.length.filter(|_| self.is_counted) else { return };
        let later = generated.saturating_sub(1);
        sequence["drafted_tokens"] = (self.steps(later) * length).into();
        sequence["accepted_tokens"] = (later - self.steps(later)).into();
    }
}

/// Sends the token with this index of each sequence.
fn stream(
    context: &Context,
    request: &Generate,
    iteration: u64,
    index: usize,
    outputs: &[Vec<u64>],
    ns: u64,
) {
    if false_report::omits_token(context.script, index) {
        return;
    }
    for (sequence, id) in outputs.iter().enumerate().filter_map(|(at, ids)| Some((at, ids.get(index)?))) {
        let id = if has(context.script, "wrong_streamed_ids") { id + 1 } else { *id };
        let mut token = json!({
            "type": "token", "iteration": iteration, "sequence": sequence, "index": index, "ids": [id], "ns": ns,
        });
        if !request.id.is_null() {
            token["id"] = request.id.clone();
        }
        false_report::change_token(context.script, &mut token);
        fault::print(&format!("{token}\n"));
    }
}

/// Waits until `ns` after the request line. Returns false if the request is cancelled first. A sleep ends about a tenth of a
/// millisecond late, which is as long as a token of a fast engine. So the last part of the wait is a spin loop.
fn wait(context: &Context, ns: u64) -> bool {
    const MAX_SLEEP: Duration = Duration::from_millis(5);
    const SPIN: Duration = Duration::from_micros(200);
    while !(context.cancelled)() {
        let left = Duration::from_nanos(ns).saturating_sub(context.read_at.elapsed());
        if left.is_zero() || !context.script.flag("real_sleep") {
            return true;
        }
        match left.checked_sub(SPIN).filter(|duration| !duration.is_zero()) {
            Some(duration) => std::thread::sleep(duration.min(MAX_SLEEP)),
            None => std::hint::spin_loop(),
        }
    }
    false
}
