//! The sampled pass: requests of a case in which samplers look on, after everything of it that is timed in that launch. What
//! they see stands beside the samples; nothing of the pass is a sample.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::ask::Requests;
use super::blocking::off_thread;
use super::journal::Journal;
use super::launch::Launched;
use super::stop::Stop;
use crate::machine::Device;
use crate::machine::energy::Reading;
use crate::machine::gpu::{self, gpus_of};
use crate::machine::sampler::{Sampler, What};
use crate::plan::Plan;
use crate::plan::prompts::Which;
use crate::record::{Entry, Idle, Pass, Role, output_tokens};
use crate::run::process::Stage;

/// A request that takes longer is not asked once more: its memory is known from the samples themselves.
pub(super) const LONGEST: Duration = Duration::from_secs(20);
/// Counters of energy and a GPU's utilisation are means over some time.
const SPAN: Duration = Duration::from_millis(3000);
/// Of a run that has a budget, each pass takes so much at most.
const SHARE_OF_BUDGET: u32 = 200;
/// What is idle is looked at for so long.
const IDLE: Duration = Duration::from_millis(1500);
/// Requests for one token alone, of which the shortest counts.
const SHORT: usize = 3;
/// Beyond the number of any sample: no request of a pass is one that was asked before.
const FIRST_INDEX: u32 = 1 << 24;

/// What counters of energy count while nothing of this run runs. Where there are none nobody waits.
pub(super) async fn look_at_idle(plan: &Plan, journal: &mut Journal<'_>) -> Result<()> {
    let started = plan.configurations.iter().filter(|it| it.unavailable.is_none());
    let with_gpus = started.into_iter().any(|it| !it.device.is_cpu());
    let before = reading(with_gpus).await?;
    if before.is_empty() {
        return Ok(());
    }
    // Nothing is to happen for that long: the time is what is measured.
    let _ = tokio::time::timeout(IDLE, std::future::pending::<()>()).await;
    let energy = reading(with_gpus).await?.since(&before);
    journal.take(Entry::Idle(Idle { energy }))
}

/// What the counters say now. Those of GPUs count nothing for an engine on the CPU, and then their driver is not asked.
async fn reading(with_gpus: bool) -> Result<Reading> {
    off_thread(if with_gpus { Reading::with_gpus } else { Reading::of_processors }).await
}

/// The pass of one case in one launch.
pub(super) struct SampledPass<'r, 'a> {
    pub plan: &'a Plan,
    pub journal: &'r mut Journal<'a>,
    pub requests: &'r Requests<'a>,
    pub case: usize,
}

impl SampledPass<'_, '_> {
    /// One request in which memory is looked at; then, where something counts the energy of its device or that is a GPU, as many
    /// as fill the span, with nobody walking page tables.
    pub async fn take(&mut self, launched: &mut Launched) -> Result<(), Stop> {
        let elsewhere = launched.launch.loaded.iter().flat_map(|loaded| loaded.pids.clone());
        let roots: Vec<u32> = std::iter::once(launched.talk.process.pid).chain(elsewhere).collect();
        let of = Pass { launch: launched.number(self.journal)?, case: self.case, ..Pass::default() };
        let sampler = Sampler::start(What::Memory, roots.clone());
        let mut pass = of.clone();
        self.ask_for(launched, &mut pass, Duration::ZERO).await?;
        let held = off_thread(|| sampler.stop()).await?.held;
        let one_token_ns = self.one_token(launched, &of).await?;
        let on_gpus = !self.plan.configurations[launched.launch.configuration].device.is_cpu();
        let before = reading(on_gpus).await?;
        if on_gpus || !before.is_empty() {
            let sampler = match on_gpus {
                true => {
                    // A worker that somebody else started anew has left the tree, and holds the device all the same.
                    let anywhere = roots.into_iter().chain(launched.talk.process.all().await).collect();
                    Some(Sampler::start(What::Gpus, anywhere))
                }
                false => None,
            };
            pass = of;
            self.ask_for(launched, &mut pass, self.span()).await?;
            pass.energy = reading(on_gpus).await?.since(&before);
            if let Some(sampler) = sampler {
                pass.gpus = off_thread(|| sampler.stop()).await?.gpus;
            }
        }
        (pass.held, pass.one_token_ns) = (held, one_token_ns);
        for message in self.slowed(launched, &pass) {
            self.journal.warn(Some(launched.launch.configuration), message)?;
        }
        Ok(self.journal.take(Entry::Pass(pass))?)
    }

    /// What slowed down the GPUs that it computed on: of others it is nobody's business here.
    fn slowed(&self, launched: &Launched, pass: &Pass) -> Vec<String> {
        let configuration = &self.plan.configurations[launched.launch.configuration];
        let stated = launched.launch.loaded.as_ref().and_then(|loaded| loaded.facts.device.as_deref());
        let device = Device::in_effect(stated, &configuration.device);
        if device.is_cpu() {
            return Vec::new();
        }
        let machine = &self.journal.record().header.machine;
        let probed = self.journal.record().limits.iter().map(|limits| &limits.probed);
        let limits = machine_limits::Limits::best(probed);
        let index = device.cuda_index_stated(&configuration.device);
        let own = gpus_of(&pass.gpus, index, Some(machine), limits.as_ref()).unwrap_or_default();
        let looked = pass.gpus.iter().filter(|gpu| own.contains(&gpu.index));
        let of = |index: u32| machine.gpus.iter().find(|gpu| gpu.index == index);
        looked.filter_map(|pass| gpu::slowed(pass, of(pass.index))).collect()
    }

    /// One request at least.
    async fn ask_for(&self, launched: &mut Launched, pass: &mut Pass, span: Duration) -> Result<(), Stop> {
        let begun = Instant::now();
        loop {
            self.ask_sampled(launched, pass, u32::MAX).await?;
            if begun.elapsed() >= span {
                pass.elapsed_ns = begun.elapsed().as_nanos() as u64;
                return Ok(());
            }
        }
    }

    /// What the same prompt takes for one token, on the orchestrator's clock: all the others together take what is left of a
    /// request, whatever their stamps say.
    async fn one_token(&self, launched: &mut Launched, of: &Pass) -> Result<Option<u64>, Stop> {
        if self.plan.cases[of.case].workload.max_new_tokens < 2 {
            return Ok(None);
        }
        let mut shortest = None;
        for _ in 0..SHORT {
            let elapsed_ns = self.ask_sampled(launched, &mut of.clone(), 1).await?;
            shortest = Some(shortest.map_or(elapsed_ns, |shortest: u64| shortest.min(elapsed_ns)));
        }
        Ok(shortest)
    }

    fn span(&self) -> Duration {
        let budget = self.plan.extent.budget_ns.map(Duration::from_nanos);
        budget.map_or(SPAN, |budget| SPAN.min(budget / SHARE_OF_BUDGET))
    }

    /// One request of the case's shape, for no more tokens than that, with a prompt of its own, verified as every other. Gives
    /// what it took on the orchestrator's clock.
    async fn ask_sampled(&self, launched: &mut Launched, pass: &mut Pass, most: u32) -> Result<u64, Stop> {
        let mut workload = self.plan.cases[pass.case].workload.clone();
        workload.max_new_tokens = workload.max_new_tokens.min(most);
        // Of a launch no two are one.
        let index = FIRST_INDEX + launched.asked as u32;
        let which = Which { seed: self.plan.seed, block: launched.launch.block, role: Role::Measured, index };
        let (prompts, ids) = self.requests.prompt(launched, &workload, which, Stage::Pass)?;
        let capabilities = launched.hello().map(|hello| &hello.capabilities);
        let request = prompts.request(&workload, &ids, capabilities, launched.asked);
        launched.asked += 1;
        let answer = self.requests.converse(launched, request, &workload).await;
        let answer = answer.map_err(|cause| launched.fault(Stage::Pass, cause))?;
        let sequences = answer.generated.iterations.iter().flat_map(|iteration| &iteration.sequences);
        for sequence in sequences {
            pass.prompt_tokens += u64::from(sequence.prompt_tokens);
            pass.new_tokens = pass.new_tokens.saturating_add(output_tokens(sequence));
        }
        pass.requests += 1;
        Ok(answer.answered_ns.saturating_sub(answer.sent_ns))
    }
}
