//! The sampled pass: requests of a case while samplers observe the engine, after all timed requests of the case in that launch.
//! None of its requests is a sample.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::blocking::off_thread;
use super::case::Cases;
use super::journal::Journal;
use super::launch::Launched;
use crate::machine::energy::Reading;
use crate::machine::gpu;
use crate::machine::sampler::{Sampler, Target};
use crate::machine::{Device, gpus_of};
use crate::plan::Plan;
use crate::record::{Entry, Idle, Pass, RequestKind, output_tokens};
use crate::run::process::{LaunchError, Stage};

/// A case with longer requests has no pass. The memory of such a case is known from the samples.
const MAX_REQUEST_TIME: Duration = Duration::from_secs(20);
/// With a budget, `MAX_REQUEST_TIME` is reduced to the budget divided by this.
const MAX_REQUEST_DIVISOR: u32 = 60;
/// Requests are repeated for this time while energy and GPUs are sampled. It is long enough for a mean power and a mean
/// utilisation.
const PASS_TIME: Duration = Duration::from_millis(3000);
/// With a budget, `PASS_TIME` is reduced to the budget divided by this.
const BUDGET_DIVISOR: u32 = 200;
/// The time during which idle energy is counted.
const IDLE_TIME: Duration = Duration::from_millis(1500);
/// The number of one-token requests, of which the shortest counts.
const ONE_TOKEN_REQUESTS: usize = 3;
/// The index of a request in a pass is this offset plus the number of earlier requests of the launch. It is above the
/// indices of all samples, so that no prompt repeats.
const INDEX_OFFSET: u32 = 1 << 24;

/// Counts the machine's energy while no engine runs. Without counters there is no wait.
pub(super) async fn sample_idle_energy(plan: &Plan, journal: &mut Journal<'_>) -> Result<()> {
    let started = plan.configurations.iter().filter(|it| it.unavailable.is_none());
    let with_gpus = started.into_iter().any(|it| !it.device.is_cpu());
    let before = read_counters(with_gpus).await?;
    if before.is_empty() {
        return Ok(());
    }
    // Nothing may happen during this idle interval.
    let _ = tokio::time::timeout(IDLE_TIME, std::future::pending::<()>()).await;
    let energy = read_counters(with_gpus).await?.since(&before);
    journal.take(Entry::Idle(Idle { energy }))
}

/// The counters now. The GPUs' driver is asked only if `with_gpus` is true.
async fn read_counters(with_gpus: bool) -> Result<Reading> {
    off_thread(if with_gpus { Reading::with_gpus } else { Reading::of_processors }).await
}

/// Samples memory during one request, then makes requests for one token. With energy counters or a GPU, more requests follow
/// for `pass_time`. Memory is not sampled then, because reading it walks page tables, which adds to the energy.
pub(super) async fn sampled_pass(
    cases: &mut Cases<'_, '_>,
    launched: &mut Launched,
    case: usize,
) -> Result<(), LaunchError> {
    let roots = launched.roots();
    let empty = Pass { launch: launched.number(cases.journal)?, case, ..Pass::default() };
    let sampler = Sampler::start(Target::Memory, roots.clone());
    let mut pass = empty.clone();
    repeat_requests(cases, launched, &mut pass, Duration::ZERO).await?;
    let largest_memory = off_thread(|| sampler.stop()).await?.held;
    let one_token_ns = one_token_time(cases, launched, &empty).await?;
    let on_gpus = !cases.plan.configurations[launched.launch.configuration].device.is_cpu();
    let before = read_counters(on_gpus).await?;
    if on_gpus || !before.is_empty() {
        let mut sampler = None;
        if on_gpus {
            // A restarted worker may have left the process tree, but it still uses the device.
            let processes = roots.into_iter().chain(launched.conversation.process.all().await).collect();
            sampler = Some(Sampler::start(Target::Gpus, processes));
        }
        pass = empty;
        repeat_requests(cases, launched, &mut pass, pass_time(cases.plan)).await?;
        pass.energy = read_counters(on_gpus).await?.since(&before);
        if let Some(sampler) = sampler {
            pass.gpus = off_thread(|| sampler.stop()).await?.gpus;
        }
    }
    (pass.held, pass.one_token_ns) = (largest_memory, one_token_ns);
    for message in slowdown_warnings(cases, launched, &pass) {
        cases.journal.warn(Some(launched.launch.configuration), message)?;
    }
    Ok(cases.journal.take(Entry::Pass(pass))?)
}

/// Warnings with the driver's reasons why a GPU of this engine was slowed down. Other GPUs are ignored.
fn slowdown_warnings(cases: &Cases<'_, '_>, launched: &Launched, pass: &Pass) -> Vec<String> {
    let configuration = &cases.plan.configurations[launched.launch.configuration];
    let reported = launched.facts().and_then(|facts| facts.device.as_deref());
    let device = Device::in_effect(reported, &configuration.device);
    if device.is_cpu() {
        return Vec::new();
    }
    let machine = &cases.journal.record().header.machine;
    let probed = cases.journal.record().limits.iter().map(|limits| &limits.probed);
    let limits = machine_limits::Limits::best(probed);
    let index = device.cuda_index_reported(&configuration.device);
    let indices = gpus_of(&pass.gpus, index, Some(machine), limits.as_ref()).unwrap_or_default();
    let gpus = pass.gpus.iter().filter(|gpu| indices.contains(&gpu.index));
    let machine_gpu = |index: u32| machine.gpus.iter().find(|gpu| gpu.index == index);
    gpus.filter_map(|sampled| gpu::slowdown_warning(sampled, machine_gpu(sampled.index))).collect()
}

/// Makes requests until `time` is over, at least one request.
async fn repeat_requests(
    cases: &Cases<'_, '_>,
    launched: &mut Launched,
    pass: &mut Pass,
    time: Duration,
) -> Result<(), LaunchError> {
    let begun = Instant::now();
    loop {
        make_request(cases, launched, pass, u32::MAX).await?;
        if begun.elapsed() >= time {
            pass.elapsed_ns = begun.elapsed().as_nanos() as u64;
            return Ok(());
        }
    }
}

/// The shortest time of a request for one token, in nanoseconds on the orchestrator's clock. The difference to a full request is
/// the time of all other tokens, independent of the engine's time stamps.
async fn one_token_time(
    cases: &Cases<'_, '_>,
    launched: &mut Launched,
    empty: &Pass,
) -> Result<Option<u64>, LaunchError> {
    if cases.plan.cases[empty.case].workload.max_new_tokens < 2 {
        return Ok(None);
    }
    let mut shortest_ns = u64::MAX;
    for _ in 0..ONE_TOKEN_REQUESTS {
        shortest_ns = shortest_ns.min(make_request(cases, launched, &mut empty.clone(), 1).await?);
    }
    Ok(Some(shortest_ns))
}

/// The longest request of a case that has a pass.
pub(super) fn max_request_time(plan: &Plan) -> Duration {
    let budget = plan.extent.budget();
    budget.map_or(MAX_REQUEST_TIME, |budget| MAX_REQUEST_TIME.min(budget / MAX_REQUEST_DIVISOR))
}

fn pass_time(plan: &Plan) -> Duration {
    plan.extent.budget().map_or(PASS_TIME, |budget| PASS_TIME.min(budget / BUDGET_DIVISOR))
}

/// Makes and verifies one request of the case, with a new prompt and at most `max_new_tokens` new tokens. Gives the elapsed
/// nanoseconds on the orchestrator's clock.
async fn make_request(
    cases: &Cases<'_, '_>,
    launched: &mut Launched,
    pass: &mut Pass,
    max_new_tokens: u32,
) -> Result<u64, LaunchError> {
    let mut workload = cases.plan.cases[pass.case].workload.clone();
    workload.max_new_tokens = workload.max_new_tokens.min(max_new_tokens);
    let index = INDEX_OFFSET + launched.requests as u32;
    let key = cases.plan.prompt_key(launched.launch.block, RequestKind::Measured, index);
    let stream = false;
    let (_, answer) = cases.requests.send(launched, &workload, key, Stage::Pass, stream).await?;
    let sequences = answer.generated.iterations.iter().flat_map(|iteration| &iteration.sequences);
    for sequence in sequences {
        pass.prompt_tokens += u64::from(sequence.prompt_tokens);
        pass.new_tokens = pass.new_tokens.saturating_add(output_tokens(sequence));
    }
    pass.requests += 1;
    Ok(answer.elapsed_ns())
}
