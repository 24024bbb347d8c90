//! Measures the blocks of a run. In each block, every configuration is launched anew, and the requests of all are interleaved.

use std::future::Future;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::case::Cases;
use super::journal::{Event, Journal};
use super::launch::{EXIT_GRACE, Purpose};
use super::launches::{Launches, end};
use super::limits::probe_limits;
use super::memory_groups::{Member, MemoryGroup, member, memory_groups};
use super::other_processes::OtherProcesses;
use super::pass::{self, sampled_pass};
use super::request::Requests;
use super::schedule::Schedule;
use crate::machine::memory;
use crate::plan::axes::PageCache;
use crate::plan::scenario::Kind;
use crate::plan::{Mode, Order, Plan};
use crate::run::process::LaunchError;

/// After a pause, caches are cold and threads must wake up, which slows down short requests. If requests are shorter than this,
/// the first one after a pause is discarded.
const MAX_REQUEST_SLOWED_BY_PAUSE: Duration = Duration::from_millis(250);
/// An engine that is in use for a set time has at least so many turns, so that a change of the machine affects all engines alike.
const MIN_TURNS: u32 = 60;
/// The longest turn, apart from a longer request. Pauses between turns take less than a hundredth of this time.
const MAX_TURN_TIME: Duration = Duration::from_secs(1);
/// A case whose requests fail, while the engine survives, ends with so many failures.
const MAX_ERRORS: usize = 10;

/// The part of one configuration in the rounds of a workload.
struct Turn {
    /// The index of the configuration's slot in the memory group.
    slot: usize,
    case: usize,
    /// The time of a request. Unknown until the first request if the user wants no warm-up.
    request_time: Option<Duration>,
    /// Whether the engine is paused between its requests, because other engines take turns with it.
    is_paused_between: bool,
}

impl Turn {
    /// The time of a request, or zero if it is unknown.
    fn request_time(&self) -> Duration {
        self.request_time.unwrap_or_default()
    }

    fn round_time(&self) -> Duration {
        self.request_time() * if self.discards_first() { 2 } else { 1 }
    }

    /// Whether the first request after a pause is discarded.
    fn discards_first(&self) -> bool {
        self.is_paused_between && self.request_time.is_some_and(is_slowed_by_pause)
    }
}

/// Whether a request of this time is slower after a pause. If so, the first request after a pause is discarded.
pub fn is_slowed_by_pause(request_time: Duration) -> bool {
    request_time < MAX_REQUEST_SLOWED_BY_PAUSE
}

/// Whether the engine of a case is paused between its requests, because other engines have the same workload in each block.
pub fn is_paused_between_requests(plan: &Plan, case: usize) -> bool {
    let is_warm = plan.mode == Mode::Warm && plan.cases[case].workload.kind != Kind::Launch;
    let has_workload = |it: usize| {
        plan.cases_of(it)
            .iter()
            .any(|&other| plan.cases[other].workload.label == plan.cases[case].workload.label)
    };
    let others = plan.measured().into_iter().filter(|&it| it != plan.cases[case].configuration);
    is_warm && plan.order == Order::Interleaved && others.into_iter().any(has_workload)
}

/// Carries out the schedule, block by block.
pub(super) struct Blocks<'r, 'a> {
    pub plan: &'a Plan,
    pub journal: &'r mut Journal<'a>,
    pub launches: &'r mut Launches<'a>,
    pub requests: &'r Requests<'a>,
    pub schedule: &'r mut Schedule<'a>,
    pub other_processes: &'r mut OtherProcesses,
    pub warned_of_memory_groups: bool,
}

impl<'a> Blocks<'_, 'a> {
    /// Measures every configuration of the plan, until every workload has enough blocks or the time is over.
    pub async fn run(&mut self) -> Result<()> {
        let all = self.plan.measured();
        match self.plan.order {
            Order::Interleaved => self.measure_blocks_of(&all).await?,
            Order::Sequential => {
                for configuration in all {
                    self.schedule.start_over();
                    self.measure_blocks_of(&[configuration]).await?;
                }
            }
        }
        self.schedule.record_unmeasured_cases(self.journal)
    }

    /// Measures blocks of these configurations, until every workload has enough blocks or the time is over.
    async fn measure_blocks_of(&mut self, configurations: &[usize]) -> Result<()> {
        for block in 0.. {
            let members = self.schedule.participants(configurations, block);
            if members.is_empty() {
                return if block > 0 { probe_limits(self.plan, self.journal, block).await } else { Ok(()) };
            }
            self.schedule.warn_of_left_out(self.journal, configurations, &members)?;
            self.schedule.announce(self.journal, block, &members);
            self.schedule.block_begins();
            probe_limits(self.plan, self.journal, block).await?;
            self.measure_block(block, &members).await?;
            self.schedule.block_ends();
            self.schedule.close_finished_workloads(self.journal, configurations, block as usize + 1).await?;
            self.journal.send(Event::BlockFinished { block });
        }
        Ok(())
    }

    async fn measure_block(&mut self, block: u32, configurations: &[usize]) -> Result<()> {
        let order = self.schedule.order(configurations, block);
        if self.plan.mode == Mode::OneShot {
            return self.measure_one_shots(block, &order).await;
        }
        let (null_engine, order): (Vec<usize>, Vec<usize>) =
            order.into_iter().partition(|&it| self.plan.is_null_engine(it));
        let mut members: Vec<Member> = Vec::new();
        for &configuration in &order {
            members.push(member(self.plan, self.journal.record(), configuration).await?);
        }
        let mut groups = memory_groups(&members, memory::available_bytes().unwrap_or(u64::MAX));
        self.warn_of_memory_groups(block, &groups)?;
        // The null engine needs almost no memory, so it joins the first group whose engine need not be alone.
        let is_alone =
            |configuration: &usize| members.iter().any(|it| it.configuration == *configuration && it.alone);
        match groups.iter_mut().find(|group| !group.iter().any(is_alone)) {
            Some(group) => group.extend(null_engine),
            None => groups.extend(null_engine.into_iter().map(|it| vec![it])),
        }
        for (position, group) in groups.iter().enumerate() {
            self.measure_group(block, group, &groups[position + 1..].concat()).await?;
        }
        Ok(())
    }

    /// Measures the cases of a memory group. `later` has the configurations of the block's later groups.
    async fn measure_group(&mut self, block: u32, configurations: &[usize], later: &[usize]) -> Result<()> {
        let mut group = MemoryGroup::of(configurations);
        // The pages of files that an engine has mapped cannot be dropped, so these launches come first, one at a time.
        for page_cache in [PageCache::Dropped, PageCache::Kept] {
            for slot in 0..group.slots.len() {
                self.measure_launch_cases(&mut group, slot, block, page_cache).await?;
            }
        }
        let open_cases = |schedule: &Schedule, of: &[usize]| -> Vec<usize> {
            of.iter().flat_map(|&configuration| schedule.open_cases(configuration, Kind::IN_ROUNDS)).collect()
        };
        let cases = open_cases(self.schedule, configurations);
        let mut cases_left = cases.len() + open_cases(self.schedule, later).len();
        for workload in self.schedule.open_workloads(Kind::IN_ROUNDS) {
            let of_workload = cases.iter().filter(|&&case| self.schedule.label_of(case) == workload).count();
            if of_workload > 0 {
                self.measure_workload(&mut group, block, &workload, cases_left).await?;
                cases_left -= of_workload;
            }
        }
        for slot in 0..group.slots.len() {
            let began = Instant::now();
            self.end_slot(&mut group, slot).await?;
            self.schedule.add_time(group.slots[slot].configuration, began.elapsed(), began.elapsed());
        }
        Ok(())
    }

    /// Launches the engine of a slot while the other engines are paused. A failure is one of the case that the launch is for, or of
    /// all cases of the configuration.
    async fn launch_slot(
        &mut self,
        group: &mut MemoryGroup,
        slot: usize,
        purpose: Purpose,
        case: Option<usize>,
    ) -> Result<()> {
        let index = group.slots[slot].configuration;
        if self.schedule.time_budget.is_spent() {
            return Ok(());
        }
        group.resume_only(slot).await;
        let began = Instant::now();
        let launch = self.launches.launch(self.journal, index, purpose);
        // A launch that the end of the budget interrupts is no failure of the engine.
        if let Some(launched) = within_budget(self.schedule.time_budget.ends(), launch).await {
            group.slots[slot].launched =
                self.schedule.record_if_failed(self.journal, index, case, launched)?;
        }
        self.schedule.add_time(index, began.elapsed(), began.elapsed());
        Ok(())
    }

    /// Measures the cases of kind `Launch` with this page cache, each in a launch of its own. With kept pages, the engine then stays
    /// for the other requests of the block.
    async fn measure_launch_cases(
        &mut self,
        group: &mut MemoryGroup,
        slot: usize,
        block: u32,
        page_cache: PageCache,
    ) -> Result<()> {
        let configuration = group.slots[slot].configuration;
        let mut cases = self.schedule.open_cases(configuration, &[Kind::Launch]);
        cases.retain(|&case| self.plan.cases[case].workload.shape.page_cache == page_cache);
        let is_kept = page_cache.is_kept();
        if !is_kept && !cases.is_empty() && !self.launches.has_loaded(configuration) {
            // The first load may pack the weights, and shows which files the engine reads later.
            self.launch_slot(group, slot, Purpose::Block(block, PageCache::Kept), None).await?;
            self.end_slot(group, slot).await?;
        }
        for case in cases {
            if self.schedule.has_failed(case) {
                continue;
            }
            self.end_slot(group, slot).await?;
            let of_case = (!is_kept).then_some(case);
            self.launch_slot(group, slot, Purpose::Block(block, page_cache), of_case).await?;
            let ends = self.schedule.time_budget.ends();
            let Some(launched) = group.slots[slot].launched.as_mut() else { continue };
            let began = Instant::now();
            let outcome = within_budget(ends, self.cases().measure_launch_case(launched, case)).await;
            self.handle_outcome(group, slot, case, outcome).await?;
            self.schedule.add_time(configuration, began.elapsed(), began.elapsed());
        }
        let has_rounds = !self.schedule.open_cases(configuration, Kind::IN_ROUNDS).is_empty();
        match is_kept {
            false => self.end_slot(group, slot).await,
            true if has_rounds && group.slots[slot].launched.is_none() => {
                self.launch_slot(group, slot, Purpose::Block(block, page_cache), None).await
            }
            true => Ok(()),
        }
    }

    /// Ends the engine of a slot, if it is running.
    async fn end_slot(&mut self, group: &mut MemoryGroup, slot: usize) -> Result<()> {
        let can_answer = true;
        match group.slots[slot].launched.take() {
            Some(launched) => end(self.journal, launched, can_answer).await,
            None => Ok(()),
        }
    }

    /// Measures the rounds of one workload in every slot that has it. `cases_left` counts the cases that this block has not
    /// measured yet, including those of this workload.
    async fn measure_workload(
        &mut self,
        group: &mut MemoryGroup,
        block: u32,
        workload: &str,
        cases_left: usize,
    ) -> Result<()> {
        let mut turns = self.warm_up_each(group, block, workload, cases_left).await?;
        let Some(first) = turns.first() else { return Ok(()) };
        if let Some(time) = self.plan.cases[first.case].workload.time_in_use() {
            self.use_for(time, group, &mut turns).await?;
            return self.make_passes(group, block, &turns).await;
        }
        let planned = self.plan.cases[first.case].workload.rounds;
        let round_times: Vec<Duration> = turns.iter().map(Turn::round_time).collect();
        let rounds = self.schedule.time_budget.rounds_that_fit(planned, &round_times, cases_left);
        let order: Vec<usize> = (0..turns.len()).collect();
        for round in 0..rounds.iter().copied().max().unwrap_or(0) {
            // Each round begins with another engine.
            let (later, first) = order.split_at(round as usize % order.len());
            for &position in first.iter().chain(later).filter(|&&it| round < rounds[it]) {
                self.request_in_turn(group, &mut turns[position], round).await?;
            }
        }
        self.make_passes(group, block, &turns).await
    }

    /// Makes the request of a round in one slot, unless the case or the time has ended.
    async fn request_in_turn(&mut self, group: &mut MemoryGroup, turn: &mut Turn, round: u32) -> Result<()> {
        if self.schedule.has_failed(turn.case) || self.schedule.time_budget.is_spent() {
            return Ok(());
        }
        let (ends, began) = (self.schedule.time_budget.ends(), Instant::now());
        let discards_first = group.resume_only(turn.slot).await && turn.discards_first();
        let Some(launched) = group.slots[turn.slot].launched.as_mut() else { return Ok(()) };
        let mut cases = self.cases();
        let request = cases.request_round(launched, turn.case, round, discards_first);
        let outcome = within_budget(ends, request).await;
        let request_time = self.handle_outcome(group, turn.slot, turn.case, outcome).await?;
        turn.request_time = turn.request_time.or(request_time);
        // Every block has the first round, so no shorter block can avoid its time.
        let least = if round == 0 { began.elapsed() } else { Duration::ZERO };
        self.schedule.add_time(group.slots[turn.slot].configuration, began.elapsed(), least);
        Ok(())
    }

    /// Makes one request after the other to each engine, until it was in use for this time. The engines take turns. An engine that survives
    /// a failed request gets the next one.
    async fn use_for(&mut self, time: Duration, group: &mut MemoryGroup, turns: &mut [Turn]) -> Result<()> {
        let turn_time = (time / MIN_TURNS).min(MAX_TURN_TIME);
        let mut used = vec![(Duration::ZERO, 0_u32); turns.len()];
        let mut is_over = false;
        while !is_over {
            is_over = true;
            for (turn, (used, requests)) in turns.iter_mut().zip(&mut used) {
                let began = Instant::now();
                while began.elapsed() < turn_time && *used + began.elapsed() < time {
                    self.request_in_turn(group, turn, *requests).await?;
                    *requests += 1;
                    if self.schedule.has_failed(turn.case) && group.slots[turn.slot].launched.is_some() {
                        self.schedule.reopen(turn.case, self.journal.record(), MAX_ERRORS);
                    }
                    let has_ended = self.schedule.has_failed(turn.case);
                    if has_ended || self.schedule.time_budget.is_spent() {
                        *used = time;
                    }
                }
                *used += began.elapsed();
                is_over &= *used >= time;
            }
        }
        if self.schedule.time_budget.is_spent() {
            self.schedule.needed.add_short(false);
        }
        Ok(())
    }

    async fn warm_up_each(
        &mut self,
        group: &mut MemoryGroup,
        block: u32,
        workload: &str,
        cases_left: usize,
    ) -> Result<Vec<Turn>> {
        let (mut turns, mut begun) = (Vec::new(), 0);
        let slots = group.slots.len();
        for slot in 0..slots {
            let cases = self.schedule.open_cases(group.slots[slot].configuration, Kind::IN_ROUNDS);
            let Some(case) = cases.into_iter().find(|&it| self.schedule.label_of(it) == workload) else {
                continue;
            };
            if group.slots[slot].launched.is_none() {
                // The engine ended in an earlier case. This case gets a new launch.
                self.launch_slot(group, slot, Purpose::Block(block, PageCache::Kept), None).await?;
            }
            group.resume_only(slot).await;
            let Some(launched) =
                group.slots[slot].launched.as_mut().filter(|_| !self.schedule.time_budget.is_spent())
            else {
                continue;
            };
            let limit = self.schedule.time_budget.warm_up_limit(cases_left.saturating_sub(begun));
            begun += 1;
            let (ends, began) = (self.schedule.time_budget.ends(), Instant::now());
            let mut cases = Cases {
                plan: self.plan,
                journal: &mut *self.journal,
                requests: self.requests,
                other_processes: &mut *self.other_processes,
            };
            let warm_up = cases.warm_up(launched, case, self.schedule, limit);
            let outcome = within_budget(ends, warm_up).await;
            if let Some(request_ns) = self.handle_outcome(group, slot, case, outcome).await? {
                let request_time = request_ns.map(|ns| Duration::from_nanos(ns as u64));
                let configuration = group.slots[slot].configuration;
                self.schedule.add_time(configuration, began.elapsed(), request_time.unwrap_or_default());
                turns.push(Turn { slot, case, request_time, is_paused_between: true });
            }
        }
        let alone = turns.len() == 1;
        turns.iter_mut().for_each(|turn| turn.is_paused_between = !alone);
        Ok(turns)
    }

    /// Records a failure. After it, the engine keeps its slot only if it can still take requests. If there is no outcome, the end
    /// of the budget interrupted the engine. That is no failure, and the engine is ended.
    async fn handle_outcome<T>(
        &mut self,
        group: &mut MemoryGroup,
        slot: usize,
        case: usize,
        outcome: Option<Result<T, LaunchError>>,
    ) -> Result<Option<T>> {
        let slot = &mut group.slots[slot];
        let Some(outcome) = outcome else {
            if let Some(launched) = slot.launched.take() {
                let can_answer = false;
                end(self.journal, launched, can_answer).await?;
            }
            return Ok(None);
        };
        if let Err(LaunchError::EngineFailure(failure)) = &outcome
            && let Some(mut launched) = slot.launched.take()
        {
            // An engine that cannot go on sends `failed` and ends. The next case then gets a new launch.
            let can_continue = failure.cause.engine_survives();
            if can_continue && launched.conversation.process.wait(EXIT_GRACE).await.is_none() {
                slot.launched = Some(launched);
            } else {
                let can_answer = false;
                end(self.journal, launched, can_answer).await?;
            }
        }
        let configuration = slot.configuration;
        self.schedule.record_if_failed(self.journal, configuration, Some(case), outcome)
    }

    /// Makes the sampled passes of a workload in the first block. Later blocks have none, because memory and power differ little
    /// between launches. A query is no work that a sampler could see.
    async fn make_passes(&mut self, group: &mut MemoryGroup, block: u32, turns: &[Turn]) -> Result<()> {
        let longest = pass::max_request_time(self.plan);
        for turn in turns.iter().filter(|turn| block == 0 && turn.request_time() <= longest) {
            let is_row = self.plan.configurations[group.slots[turn.slot].configuration].role.is_none();
            let kind = self.plan.cases[turn.case].workload.kind;
            // The energy of a request alone would say nothing about overlapping ones.
            if !is_row
                || matches!(kind, Kind::Query | Kind::Serve)
                || self.schedule.has_failed(turn.case)
                || self.schedule.time_budget.is_spent()
            {
                continue;
            }
            group.resume_only(turn.slot).await;
            let Some(launched) = group.slots[turn.slot].launched.as_mut() else { continue };
            let ends = self.schedule.time_budget.ends();
            let outcome = within_budget(ends, sampled_pass(&mut self.cases(), launched, turn.case)).await;
            self.handle_outcome(group, turn.slot, turn.case, outcome).await?;
        }
        Ok(())
    }

    /// Makes each request in its own process, in rounds like other blocks.
    async fn measure_one_shots(&mut self, block: u32, order: &[usize]) -> Result<()> {
        for &index in order {
            let converted = self.launches.convert_for_one_shots(self.journal, index, block).await;
            self.schedule.record_if_failed(self.journal, index, None, converted)?;
        }
        let workloads =
            [self.schedule.open_workloads(&[Kind::Launch]), self.schedule.open_workloads(Kind::IN_ROUNDS)]
                .concat();
        for (position, workload) in workloads.iter().enumerate() {
            let is_left = |case: usize| {
                let label = self.schedule.label_of(case);
                self.schedule.is_open(case) && workloads[position..].iter().any(|it| it == label)
            };
            let all = order.iter().flat_map(|&index| self.plan.cases_of(index));
            let cases_left = all.filter(|&case| is_left(case)).count();
            let cases = order.iter().flat_map(|&index| self.plan.cases_of(index));
            let cases: Vec<usize> = cases
                .filter(|&case| self.schedule.is_open(case) && self.schedule.label_of(case) == *workload)
                .collect();
            // The first round shows how many more rounds fit.
            let times = self.measure_one_shot_round(block, &cases, |_| true, 0).await?;
            let planned = cases.iter().map(|&case| self.plan.cases[case].workload.rounds).max().unwrap_or(0);
            let more = match planned {
                0 | 1 => vec![0; cases.len()],
                _ => self.schedule.time_budget.rounds_that_fit(planned - 1, &times, cases_left),
            };
            for round in 1..planned {
                self.measure_one_shot_round(block, &cases, |at| round <= more[at], round).await?;
            }
        }
        Ok(())
    }

    /// Runs one round of one-shot processes, for the selected positions of `cases`. Returns the time of each case, zero for a
    /// case that did not run.
    async fn measure_one_shot_round(
        &mut self,
        block: u32,
        cases: &[usize],
        is_selected: impl Fn(usize) -> bool,
        round: u32,
    ) -> Result<Vec<Duration>> {
        let mut times = vec![Duration::ZERO; cases.len()];
        for position in 0..cases.len() {
            let at = (position + round as usize) % cases.len();
            let case = cases[at];
            let can_begin = !self.schedule.has_failed(case) && !self.schedule.time_budget.is_spent();
            if !is_selected(at) || !can_begin {
                continue;
            }
            let (ends, began) = (self.schedule.time_budget.ends(), Instant::now());
            let configuration = self.plan.cases[case].configuration;
            if let Some(outcome) = within_budget(ends, self.measure_one_shot(block, case, round)).await {
                self.schedule.record_if_failed(self.journal, configuration, Some(case), outcome)?;
            }
            times[at] = began.elapsed();
            let least = if round == 0 { times[at] } else { Duration::ZERO };
            self.schedule.add_time(configuration, times[at], least);
        }
        Ok(times)
    }

    /// Starts a process for one request, then ends it.
    async fn measure_one_shot(&mut self, block: u32, case: usize, round: u32) -> Result<(), LaunchError> {
        let index = self.plan.cases[case].configuration;
        let purpose = Purpose::OneShot(block, self.plan.cases[case].workload.shape.page_cache);
        let mut launched = self.launches.start(self.journal, index, purpose).await?;
        let model = self.launches.model_path(index).to_string();
        let outcome = self.cases().request_cold(&mut launched, &model, case, round).await;
        if self.plan.drops_page_cache() {
            self.launches.note_packed_files(&launched).await?;
        }
        let can_answer = false;
        end(self.journal, launched, can_answer).await?;
        outcome
    }

    fn cases(&mut self) -> Cases<'_, 'a> {
        Cases {
            plan: self.plan,
            journal: self.journal,
            requests: self.requests,
            other_processes: self.other_processes,
        }
    }

    /// Warns once that memory groups are measured at different times.
    fn warn_of_memory_groups(&mut self, block: u32, groups: &[Vec<usize>]) -> Result<()> {
        if groups.len() < 2 || std::mem::replace(&mut self.warned_of_memory_groups, true) {
            return Ok(());
        }
        let label = |index: &usize| format!("`{}`", self.plan.configurations[*index].label);
        let names = groups.iter().map(|group| group.iter().map(label).collect::<Vec<_>>().join(" and "));
        let message = format!(
            "some engines cannot stay paused in memory while others run; from block {} on they run in groups: {}; ratios between \
             groups are less precise; use fewer engines or a smaller model",
            block + 1,
            names.collect::<Vec<_>>().join(", then ")
        );
        self.journal.warn(None, message)
    }
}

/// The result of some work, or `None` if the end of the budget interrupted it. `ends` is `None` without a limit.
pub(super) async fn within_budget<T>(ends: Option<Instant>, work: impl Future<Output = T>) -> Option<T> {
    match ends {
        Some(ends) => tokio::time::timeout_at(ends.into(), work).await.ok(),
        None => Some(work.await),
    }
}
