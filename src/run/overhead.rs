//! The orchestrator's overhead, measured with the null engine and the same code that drives every engine.

use std::fmt::Display;
use std::future::Future;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use protocol::{Generate, Load};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

use crate::record::{self, new_id};
use crate::run::process::{Answer, Conversation, Deadlines, Hello, Keeper, Launching, Process};
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
}

/// The numbers of repetitions and tokens in `Overhead::measure`.
const LAUNCHES: usize = 20;
const REQUESTS: usize = 1000;
const STREAMS: usize = 20;
const STREAMED_TOKENS: u32 = 1000;
const PACED_TOKENS: u32 = 1000;
const WAITS: usize = 3;
const SECOND: Duration = Duration::from_secs(1);
/// The lengths of prompt and output in tokens.
const PROMPT_TOKENS: u32 = 128;
const OUTPUT_TOKENS: u32 = 64;

/// The quick measurement before a run, which takes less than a tenth of a second.
const BRIEF_REQUESTS: usize = 50;
const BRIEF_STREAMS: usize = 3;
const BRIEF_TOKENS: u32 = 100;
const BRIEF_DEADLINE: Duration = Duration::from_secs(5);

impl Overhead {
    /// Measures all costs. This takes about five seconds, of which four are deliberate waits.
    pub fn measure() -> Result<Self> {
        let run = new_id();
        // When the keeper is dropped, it ends every process that is started below.
        let _keeper = Keeper::start(&run)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let timings = runtime.block_on(async {
            let mut timings = vec![start_up(&run).await?, launch(&run).await?];
            let mut conversation = start(&run, "requests", 0.0).await?.0;
            timings.push(request(&mut conversation).await?);
            timings.push(query(&mut conversation).await?);
            timings.extend(stream(&mut conversation).await?);
            end(conversation).await?;
            timings.push(arrival(&run).await?);
            timings.push(wait(&run).await?);
            anyhow::Ok(timings)
        })?;
        Ok(Self { timings })
    }
}

/// Measures the overhead of a request and of a streamed token, for a run's record.
pub async fn measure_briefly(run: &str) -> Result<record::Overhead> {
    let measured = tokio::time::timeout(BRIEF_DEADLINE, async {
        let mut conversation = start(run, "null-engine", 0.0).await?.0;
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
        let (median_ns, p95_ns) =
            median(&values).zip(quantile(&values, 0.95)).context("nothing was measured")?;
        Ok(Self { name, about, n: values.len(), unit: "ns", median_ns, p95_ns })
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
        let (conversation, loaded_ns) = start(run, launch, 0.0).await?;
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
async fn arrival(run: &str) -> Result<Timing> {
    let mut conversation = start(run, "arrival", 1.0).await?.0;
    let request = Generate { stream: true, ..generate_request(PACED_TOKENS) };
    let answer = generate(&mut conversation, request).await?;
    end(conversation).await?;
    let late = answer
        .tokens
        .iter()
        .map(|(token, arrived_ns)| arrived_ns.saturating_sub(answer.sent_ns + token.ns) as f64);
    Timing::of(
        "arrival",
        "from the engine's time stamp of a token to its arrival here, one token each ms",
        late.collect(),
    )
}

/// Measures this program's CPU time while the engine works for a second and writes nothing.
async fn wait(run: &str) -> Result<Timing> {
    let tokens = 40;
    let mut conversation = start(run, "wait", SECOND.as_secs_f64() * 1e3 / f64::from(tokens)).await?.0;
    let mut values = Vec::new();
    for _ in 0..WAITS {
        let before_ns = cpu_ns();
        let answer = generate(&mut conversation, generate_request(tokens)).await?;
        let cpu_ns = (cpu_ns() - before_ns) as f64;
        values.push(cpu_ns / answer.elapsed_ns() as f64 * SECOND.as_nanos() as f64);
    }
    end(conversation).await?;
    let timing = Timing::of(
        "CPU while waiting",
        "this program's CPU time per second while an engine works without output",
        values,
    )?;
    Ok(Timing { unit: "ns/s", ..timing })
}

/// Starts and loads the null engine, which is a subcommand of this program. `launch` is a name that is used once in the run.
/// Also returns the nanoseconds from the start of the process to `loaded`.
async fn start(run: &str, launch: impl Display, ms_per_token: f64) -> Result<(Conversation, u64)> {
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
    let options = [("ms_per_token".to_string(), ms_per_token.into())].into_iter().collect();
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

/// This process's CPU time so far: all threads, without children.
fn cpu_ns() -> i64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timing_has_the_median_and_the_95th_percentile() {
        let timing = Timing::of("x", "y", (0..=100).rev().map(f64::from).collect()).unwrap();
        assert_eq!((timing.n, timing.median_ns, timing.p95_ns), (101, 50.0, 95.0));
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
