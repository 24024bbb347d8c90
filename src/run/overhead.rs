//! The orchestrator's overhead, measured with the null engine and the same code that drives every engine.

use std::fmt::Display;
use std::future::Future;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use protocol::{Generate, Id, Load};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use serde_json::Value;

use crate::record::{self, new_id};
use crate::run::process::{self, Answer, Conversation, Deadlines, Hello, Keeper, Launching, Process, Wishes};
use crate::text::plural;
use stats::{median, quantile};

#[derive(Debug, Clone)]
pub struct Overhead {
    pub timings: Vec<Timing>,
}

/// One cost, over several measurements.
#[derive(Debug, Clone, Serialize)]
pub struct Timing {
    pub name: &'static str,
    pub about: &'static str,
    pub n: usize,
    /// The unit of the values: `ns`, or `ns/s` for CPU time per second.
    pub unit: &'static str,
    pub median_ns: f64,
    pub p95_ns: f64,
    pub p99_ns: f64,
}

/// The numbers of repetitions and tokens in `Overhead::measure`.
const LAUNCHES: usize = 20;
const REQUESTS: usize = 1000;
const STREAMS: usize = 20;
const STREAMED_TOKENS: u32 = 1000;
const PACED_TOKENS: u32 = 1000;
const WAITS: usize = 3;
const SECOND: Duration = Duration::from_secs(1);
/// The number of overlapping streams, and the tokens of all of them in a second.
const OVERLAPPING: u32 = 32;
const TOKENS_PER_SECOND: u32 = 1_000;
const MANY_TOKENS_PER_SECOND: u32 = 50_000;
/// The number of windows with these streams, each of a second.
const WINDOWS: usize = 3;
/// The lengths of prompt and output in tokens.
const PROMPT_TOKENS: u32 = 128;
const OUTPUT_TOKENS: u32 = 64;

/// The quick measurement before a run, which takes less than a tenth of a second.
const BRIEF_REQUESTS: usize = 50;
const BRIEF_STREAMS: usize = 3;
const BRIEF_TOKENS: u32 = 100;
const BRIEF_DEADLINE: Duration = Duration::from_secs(5);

impl Overhead {
    /// Measures all costs. This takes about eleven seconds, most of which are deliberate waits.
    pub fn measure() -> Result<Self> {
        let run = new_id();
        // When the keeper is dropped, it ends every process that is started below.
        let _keeper = Keeper::start(&run)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let timings = runtime.block_on(async {
            let mut timings = vec![start_up(&run).await?, launch(&run).await?];
            let mut conversation = start(&run, "requests", &[]).await?.0;
            timings.push(request(&mut conversation).await?);
            timings.push(query(&mut conversation).await?);
            timings.extend(stream(&mut conversation).await?);
            end(conversation).await?;
            timings.extend(arrival(&run).await?);
            timings.extend(overlapping_streams(&run).await?);
            timings.push(wait(&run).await?);
            anyhow::Ok(timings)
        })?;
        Ok(Self { timings })
    }
}

/// Measures the overhead of a request and of a streamed token, for a run's record.
pub async fn measure_briefly(run: &str) -> Result<record::Overhead> {
    let measured = tokio::time::timeout(BRIEF_DEADLINE, async {
        let mut conversation = start(run, "null-engine", &[]).await?.0;
        let requests = repeat_requests(&mut conversation, BRIEF_REQUESTS).await?;
        let streams = repeat_streams(&mut conversation, BRIEF_STREAMS, BRIEF_TOKENS).await?;
        end(conversation).await?;
        anyhow::Ok((requests, streams))
    });
    let (requests, streams) = measured.await.context("the null engine takes too long")??;
    let request_ns = median(&requests).context("nothing was measured")?;
    let tokens = f64::from(BRIEF_TOKENS);
    let per_token_ns: Vec<f64> =
        streams.iter().map(|it| (it.elapsed_ns as f64 - request_ns).max(0.0) / tokens).collect();
    let streamed_token_ns = median(&per_token_ns).context("nothing was streamed")?;
    Ok(record::Overhead {
        request_ns: request_ns as u64,
        streamed_token_ns: streamed_token_ns as u64,
        requests: requests.len() as u32,
    })
}

impl Timing {
    fn of(name: &'static str, about: &'static str, mut values: Vec<f64>) -> Result<Self> {
        values.sort_unstable_by(f64::total_cmp);
        let quantile = |share| quantile(&values, share).context("nothing was measured");
        let median_ns = median(&values).context("nothing was measured")?;
        let (p95_ns, p99_ns) = (quantile(0.95)?, quantile(0.99)?);
        Ok(Self { name, about, n: values.len(), unit: "ns", median_ns, p95_ns, p99_ns })
    }

    /// CPU time per second.
    fn of_cpu(name: &'static str, about: &'static str, values: Vec<f64>) -> Result<Self> {
        Ok(Self { unit: "ns/s", ..Self::of(name, about, values)? })
    }
}

async fn start_up(run: &str) -> Result<Timing> {
    let mut values = Vec::new();
    for launch in 0..LAUNCHES {
        let program = std::env::current_exe()?.to_string_lossy().into_owned();
        let command = vec![program, "--version".into()];
        let launch = format!("{run}/version-{launch}");
        let mut process =
            Process::start(&Launching { command, run: run.into(), launch, ..Launching::default() })?;
        let status = process.wait(SECOND).await.context("`--version` does not end")?;
        values.push(process.started.elapsed().as_nanos() as f64);
        if !status.success() {
            bail!("`--version` ended with {status}");
        }
    }
    Timing::of("--version", "from spawning this program to its end", values)
}

async fn launch(run: &str) -> Result<Timing> {
    let mut values = Vec::new();
    for launch in 0..LAUNCHES {
        let (conversation, loaded_ns) = start(run, launch, &[]).await?;
        values.push(loaded_ns as f64);
        end(conversation).await?;
    }
    Timing::of("launch", "from spawning the process to its `loaded`, hello included", values)
}

async fn request(conversation: &mut Conversation) -> Result<Timing> {
    Timing::of(
        "request",
        "from the request to its answer, minus the engine's own time (128 ids in, 64 out)",
        repeat_requests(conversation, REQUESTS).await?,
    )
}

/// The time of each request in nanoseconds, minus the engine's own work.
async fn repeat_requests(conversation: &mut Conversation, requests: usize) -> Result<Vec<f64>> {
    let request = generate_request(OUTPUT_TOKENS);
    let mut values = Vec::new();
    for _ in 0..requests {
        let answer = generate(conversation, request.clone()).await?;
        let iterations = answer.generated.iterations.iter();
        let worked_ns = iterations.map(|it| it.end_ns.saturating_sub(it.start_ns)).sum();
        values.push(answer.elapsed_ns().saturating_sub(worked_ns) as f64);
    }
    Ok(values)
}

async fn query(conversation: &mut Conversation) -> Result<Timing> {
    let mut values = Vec::new();
    for _ in 0..REQUESTS {
        let answer = from_null_engine(conversation.facts(conversation.deadlines.answer)).await?;
        values.push(answer.answered_ns.saturating_sub(answer.sent_ns) as f64);
    }
    Timing::of("query", "from a request for facts to its answer, one after the other", values)
}

async fn stream(conversation: &mut Conversation) -> Result<[Timing; 2]> {
    let streams = repeat_streams(conversation, STREAMS, STREAMED_TOKENS).await?;
    let tokens = f64::from(STREAMED_TOKENS);
    Ok([
        Timing::of(
            "streamed token",
            "time per token of 1000 streamed without pauses, including the engine's writes",
            streams.iter().map(|it| it.elapsed_ns as f64 / tokens).collect(),
        )?,
        Timing::of(
            "streamed token, CPU",
            "this program's CPU time per streamed token",
            streams.iter().map(|it| it.cpu_ns as f64 / tokens).collect(),
        )?,
    ])
}

/// The times of a whole stream.
struct Streamed {
    elapsed_ns: u64,
    cpu_ns: i64,
}

/// Streams tokens as fast as the engine writes.
async fn repeat_streams(
    conversation: &mut Conversation,
    streams: usize,
    tokens: u32,
) -> Result<Vec<Streamed>> {
    let request = Generate { stream: true, ..generate_request(tokens) };
    let mut times = Vec::new();
    for _ in 0..streams {
        let before_ns = cpu_ns();
        let answer = generate(conversation, request.clone()).await?;
        let streamed = answer.tokens.len();
        if streamed != tokens as usize {
            bail!("expected {}, got {streamed}", plural(tokens, "streamed token"));
        }
        times.push(Streamed { elapsed_ns: answer.elapsed_ns(), cpu_ns: cpu_ns() - before_ns });
    }
    Ok(times)
}

/// Measures the delay of tokens that are streamed once a millisecond, so that no token waits for an earlier one.
async fn arrival(run: &str) -> Result<[Timing; 2]> {
    let mut conversation = start(run, "arrival", &[("ms_per_token", 1.into())]).await?.0;
    let request = Generate { stream: true, ..generate_request(PACED_TOKENS) };
    let before_ns = cpu_ns();
    let answer = generate(&mut conversation, request).await?;
    let cpu = cpu_per_second(before_ns, answer.elapsed_ns());
    end(conversation).await?;
    let late = answer
        .tokens
        .iter()
        .map(|(token, arrived_ns)| arrived_ns.saturating_sub(answer.sent_ns + token.ns) as f64);
    Ok([
        Timing::of(
            "arrival",
            "from the engine's time stamp of a token to its arrival here, one token each ms",
            late.collect(),
        )?,
        Timing::of_cpu("arrival, CPU", "this program's CPU time per second of these arrivals", vec![cpu])?,
    ])
}

async fn overlapping_streams(run: &str) -> Result<[Timing; 5]> {
    let usual = stream_windows(run, TOKENS_PER_SECOND).await?;
    let many = stream_windows(run, MANY_TOKENS_PER_SECOND).await?;
    let about_cpu = "this program's CPU time per second of these streams";
    Ok([
        Timing::of(
            "32 streams at 1,000/s",
            "from the engine's writing of a token to its arrival here: 32 requests at once, 1,000 tokens per \
             second together, in steps with a token of each request",
            usual.delays,
        )?,
        Timing::of_cpu("32 streams at 1,000/s, CPU", about_cpu, usual.cpu)?,
        Timing::of(
            "32 streams at 50,000/s",
            "the same with 50,000 tokens per second, of which none was lost",
            many.delays,
        )?,
        Timing::of_cpu("32 streams at 50,000/s, CPU", about_cpu, many.cpu)?,
        Timing::of(
            "32 streams at 50,000/s, rate",
            "time per token of these streams: 20 µs if they keep their rate",
            many.token_times,
        )?,
    ])
}

/// The values of overlapping streams.
#[derive(Default)]
struct Windows {
    /// Of each token, from the engine's writing to its arrival.
    delays: Vec<f64>,
    /// Of each window, the time of a token.
    token_times: Vec<f64>,
    /// Of each window, this program's CPU time per second.
    cpu: Vec<f64>,
}

/// Measures overlapping streams that together have this many tokens per second. Fails if a token is lost.
async fn stream_windows(run: &str, tokens_per_second: u32) -> Result<Windows> {
    let step = SECOND * OVERLAPPING / tokens_per_second;
    let steps = tokens_per_second / OVERLAPPING;
    let options: [(&str, Value); 2] =
        [("ms_per_token", (step.as_secs_f64() * 1e3).into()), ("streams", OVERLAPPING.into())];
    let mut conversation = start(run, format!("streams-{tokens_per_second}"), &options).await?.0;
    let mut windows = Windows::default();
    for _ in 0..WINDOWS {
        let request = Generate { stream: true, ..generate_request(steps) };
        let with_id = |id: u32| Generate { id: Some(Id::Number(id.into())), ..request.clone() };
        let requests = (0..OVERLAPPING).map(with_id).collect();
        let users = Wishes::Users(OVERLAPPING as usize);
        let deadline = conversation.deadlines.answer;
        let before_ns = cpu_ns();
        let served = process::serve(
            &mut conversation,
            requests,
            |_, _| Ok(None),
            users,
            OVERLAPPING as usize,
            deadline,
        );
        let served = from_null_engine(served).await?;
        let answers = || served.iter().map(|it| &it.answer);
        let sent_ns = answers().map(|it| it.sent_ns).min().unwrap_or_default();
        let answered_ns = answers().map(|it| it.answered_ns).max().unwrap_or_default();
        windows.cpu.push(cpu_per_second(before_ns, answered_ns - sent_ns));
        // The engine's times are those of the shared clock.
        let start_ns = null_engine::shared_clock_ns() - conversation.since_start(Instant::now());
        let mut arrivals = Vec::new();
        for answer in answers() {
            if !answer.tokens.iter().map(|(token, _)| token.index).eq(0..steps) {
                bail!("expected {} of a stream, got {}", plural(steps, "token"), answer.tokens.len());
            }
            arrivals.extend(answer.tokens.iter().map(|(_, arrived_ns)| *arrived_ns));
            let delay = |(token, arrived_ns): &(protocol::Token, u64)| {
                (start_ns + arrived_ns).saturating_sub(token.ns) as f64
            };
            windows.delays.extend(answer.tokens.iter().map(delay));
        }
        let (first, last) = (arrivals.iter().min(), arrivals.iter().max());
        let (first, last) = first.zip(last).context("nothing was streamed")?;
        // The tokens of the first step begin this time.
        let tokens = f64::from((steps - 1) * OVERLAPPING);
        windows.token_times.push((last - first) as f64 / tokens);
    }
    end(conversation).await?;
    Ok(windows)
}

/// Measures this program's CPU time while the engine works for a second and writes nothing.
async fn wait(run: &str) -> Result<Timing> {
    let tokens = 40;
    let ms_per_token = SECOND.as_secs_f64() * 1e3 / f64::from(tokens);
    let mut conversation = start(run, "wait", &[("ms_per_token", ms_per_token.into())]).await?.0;
    let mut values = Vec::new();
    for _ in 0..WAITS {
        let before_ns = cpu_ns();
        let answer = generate(&mut conversation, generate_request(tokens)).await?;
        values.push(cpu_per_second(before_ns, answer.elapsed_ns()));
    }
    end(conversation).await?;
    Timing::of_cpu(
        "CPU while waiting",
        "this program's CPU time per second while an engine works without output",
        values,
    )
}

/// Starts and loads the null engine, which is a subcommand of this program. `launch` is a name that is used once in the run.
/// Also returns the nanoseconds from the start of the process to `loaded`.
async fn start(run: &str, launch: impl Display, options: &[(&str, Value)]) -> Result<(Conversation, u64)> {
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let launching = Launching {
        label: "null-engine".into(),
        command: vec![program.to_string_lossy().into_owned(), "null-engine".into()],
        run: run.into(),
        launch: format!("{run}/{launch}"),
        ..Launching::default()
    };
    let conversation = Conversation::start(&launching, Deadlines::default());
    let mut conversation = conversation.map_err(|failure| anyhow::anyhow!("{}", failure.cause))?;
    let Hello::Known(_) = from_null_engine(conversation.hello()).await? else {
        bail!("the null engine answered no hello")
    };
    let options = options.iter().map(|(name, value)| (name.to_string(), value.clone())).collect();
    let load = Load { model: "none".into(), options, ..Load::default() };
    let (_, loaded_ns) = from_null_engine(conversation.load(load, |_| {})).await?;
    Ok((conversation, loaded_ns))
}

async fn generate(conversation: &mut Conversation, request: Generate) -> Result<Answer> {
    let deadline = conversation.deadlines.answer;
    from_null_engine(conversation.generate(request, deadline)).await
}

async fn end(mut conversation: Conversation) -> Result<()> {
    from_null_engine(conversation.shutdown()).await
}

async fn from_null_engine<T>(
    answer: impl Future<Output = Result<T, crate::run::process::Cause>>,
) -> Result<T> {
    answer.await.map_err(|cause| anyhow::anyhow!("the null engine: {cause}"))
}

fn generate_request(max_new_tokens: u32) -> Generate {
    let prompt_ids = Some((0..PROMPT_TOKENS).collect());
    Generate { prompt_ids, max_new_tokens, ignore_eos: true, ..Generate::default() }
}

/// This process's CPU time in a second, since it was `before_ns`, in nanoseconds.
fn cpu_per_second(before_ns: i64, elapsed_ns: u64) -> f64 {
    (cpu_ns() - before_ns) as f64 / elapsed_ns as f64 * SECOND.as_nanos() as f64
}

/// This process's CPU time so far: all threads, without children.
fn cpu_ns() -> i64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timing_has_the_median_and_the_percentiles() {
        let timing = Timing::of("x", "y", (0..=100).rev().map(f64::from).collect()).unwrap();
        assert_eq!((timing.n, timing.median_ns, timing.p95_ns, timing.p99_ns), (101, 50.0, 95.0, 99.0));
        assert!(Timing::of("x", "y", Vec::new()).is_err());
    }

    #[test]
    fn the_cpu_time_of_this_process_includes_its_work() {
        let before_ns = cpu_ns();
        // This work takes longer than a step of the coarsest CPU clock.
        for number in 0..40_000_000_u64 {
            std::hint::black_box(number);
        }
        // No processor finishes this loop in a millisecond, so a wrong unit shows.
        let worked_ns = cpu_ns() - before_ns;
        assert!(worked_ns > 1_000_000, "{worked_ns} ns");
    }
}
