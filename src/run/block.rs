//! One block: every configuration launched anew, their requests interleaved.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::blocking::off_thread;
use super::launch::{LAST_WORDS, Launched, Purpose};
use super::seats::Seats;
use super::sittings::{Guest, sittings};
use super::{Run, Stop};
use crate::machine::memory;
use crate::plan::Mode;
use crate::plan::dtype;
use crate::plan::scenario::Kind;
use crate::record::Launch;

/// Where nothing is known of an engine's memory: the file, what is made of it, which without a dtype is the file widened, and its
/// program.
const WIDENED_TIMES: u64 = 2;
pub(super) const PROGRAM_BYTES: u64 = 500_000_000;

/// What a rest costs an engine is refilling caches and waking threads. On two cores, with two engines in f32, the first request
/// after one took 0.2 to 0.8 ms longer (medians; any record has both), and of requests longer than 50 ms no difference could
/// be told. In one that takes longer than this it does not show, and throwing one away before each would double the time
/// for nothing.
const REST_SHOWS: Duration = Duration::from_millis(250);

/// A seat in the rounds of a workload.
pub(super) struct Turn {
    pub at: usize,
    pub case: usize,
    /// What a request takes; not known before the first one, where nobody wants any to warm up.
    request: Option<Duration>,
    /// Others take turns with it, so it rests.
    rests: bool,
}

impl Turn {
    pub fn request(&self) -> Duration {
        self.request.unwrap_or_default()
    }

    /// The first request after a rest is thrown away.
    fn shows_rests(&self) -> bool {
        self.rests && self.request.is_some_and(|request| request < REST_SHOWS)
    }
}

impl Run<'_> {
    pub(super) async fn block(&mut self, block: u32, configurations: &[usize]) -> Result<()> {
        let mut order = self.plan.order_of(configurations, block);
        order.retain(|&configuration| self.has_open_cases(configuration));
        if self.plan.mode == Mode::OneShot {
            return self.one_shots(block, &order).await;
        }
        let mut guests: Vec<Guest> = Vec::new();
        for &configuration in &order {
            guests.push(self.guest(configuration).await?);
        }
        let sittings = sittings(&guests, memory::available_bytes().unwrap_or(u64::MAX));
        self.tell_of_sittings(block, &sittings)?;
        for sitting in sittings {
            self.sit(block, &sitting).await?;
        }
        Ok(())
    }

    async fn sit(&mut self, block: u32, configurations: &[usize]) -> Result<()> {
        let mut seats = Seats::of(configurations);
        for at in 0..seats.seats.len() {
            self.seat(&mut seats, at, block, true).await?;
        }
        let workloads = self.open_workloads(Kind::Warm);
        for (place, workload) in workloads.iter().enumerate() {
            self.measure(&mut seats, block, workload, workloads.len() - place).await?;
        }
        for launched in seats.seats.into_iter().filter_map(|seat| seat.launched) {
            let of = launched.of();
            let ended = self.end(launched, true).await;
            self.survive(of, None, ended)?;
        }
        Ok(())
    }

    /// Launches a seat's engine while the others rest. What is about launches is asked at once.
    async fn seat(&mut self, seats: &mut Seats, at: usize, block: u32, first: bool) -> Result<()> {
        let index = seats.seats[at].configuration;
        if self.pace.is_spent() {
            return Ok(());
        }
        seats.turn_to(at);
        let launched = self.launch(index, Purpose::Block(block)).await;
        seats.seats[at].launched = self.survive((index, self.last_launch()), None, launched)?;
        let about_launches = self.open_cases(index, Kind::Launch);
        for case in about_launches.into_iter().filter(|_| first) {
            let Some(launched) = seats.seats[at].launched.as_mut() else { break };
            let asked = self.ask_case_of_launch(launched, case).await;
            self.settle(seats, at, case, asked).await?;
        }
        Ok(())
    }

    /// The rounds of one workload, for every seat that has it. `left`: workloads of this block, this one included.
    async fn measure(&mut self, seats: &mut Seats, block: u32, workload: &str, left: usize) -> Result<()> {
        let mut turns = self.warm_up_each(seats, block, workload, left).await?;
        let Some(first) = turns.first() else { return Ok(()) };
        let round_time =
            turns.iter().map(|turn| turn.request() * if turn.shows_rests() { 2 } else { 1 }).sum();
        let planned = self.plan.cases[first.case].workload.rounds;
        let (began, seated) = (Instant::now(), turns.len());
        for round in 0..self.pace.rounds(planned, round_time, left) {
            let (later, first) = turns.split_at_mut(round as usize % seated);
            for turn in first.iter_mut().chain(later) {
                if self.failed.contains(&turn.case) || self.pace.is_spent() {
                    continue;
                }
                let rested = seats.turn_to(turn.at) && turn.shows_rests();
                let Some(launched) = seats.seats[turn.at].launched.as_mut() else { continue };
                let asked = self.ask_round(launched, turn.case, round, rested).await;
                let took = self.settle(seats, turn.at, turn.case, asked).await?;
                turn.request = turn.request.or(took);
            }
        }
        self.pace.rounds_took(began.elapsed());
        self.passes(seats, block, &turns).await?;
        Ok(())
    }

    async fn warm_up_each(
        &mut self,
        seats: &mut Seats,
        block: u32,
        workload: &str,
        left: usize,
    ) -> Result<Vec<Turn>> {
        let mut turns = Vec::new();
        let seated = seats.seats.len();
        for at in 0..seated {
            let cases = self.open_cases(seats.seats[at].configuration, Kind::Warm);
            let Some(case) = cases.into_iter().find(|&it| self.label_of(it) == workload) else { continue };
            if seats.seats[at].launched.is_none() {
                // It died in an earlier case, which is not this one's fault.
                self.seat(seats, at, block, false).await?;
            }
            seats.turn_to(at);
            let Some(launched) = seats.seats[at].launched.as_mut().filter(|_| !self.pace.is_spent()) else {
                continue;
            };
            let limit = self.pace.warm_up(seated * left - at);
            let warmed = self.warm_up(launched, case, limit).await;
            if let Some(request_ns) = self.settle(seats, at, case, warmed).await? {
                let request = request_ns.map(|ns| Duration::from_nanos(ns as u64));
                turns.push(Turn { at, case, request, rests: true });
            }
        }
        let alone = turns.len() == 1;
        turns.iter_mut().for_each(|turn| turn.rests = !alone);
        Ok(turns)
    }

    /// A failure becomes a row, and the engine stays seated only if it can go on.
    pub(super) async fn settle<T>(
        &mut self,
        seats: &mut Seats,
        at: usize,
        case: usize,
        asked: Result<T, Stop>,
    ) -> Result<Option<T>> {
        let seat = &mut seats.seats[at];
        let of = seat.launched.as_ref().map_or((seat.configuration, None), Launched::of);
        if let Err(Stop::Fault(fault)) = &asked
            && let Some(mut launched) = seat.launched.take()
        {
            // One that cannot go on says `failed` and ends; the next case is not its to lose.
            let lives = fault.cause.engine_lives();
            if lives && launched.talk.process.wait(LAST_WORDS).await.is_none() {
                seat.launched = Some(launched);
            } else {
                let ended = self.end(launched, false).await;
                self.survive(of, None, ended)?;
            }
        }
        self.survive(of, Some(case), asked)
    }

    /// A fault is recorded and gives nothing; only what is this program's own goes on as an error.
    pub(super) fn survive<T>(
        &mut self,
        (index, launch): (usize, Option<u32>),
        case: Option<usize>,
        result: Result<T, Stop>,
    ) -> Result<Option<T>> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(Stop::Fault(fault)) => self.fail(index, case, launch, fault).map(|()| None),
            Err(Stop::Broken(error)) => Err(error),
        }
    }

    /// One process for each request, in rounds as the others are.
    async fn one_shots(&mut self, block: u32, order: &[usize]) -> Result<()> {
        for &index in order {
            let converted = self.convert_for_one_shots(index, block).await;
            self.survive((index, None), None, converted)?;
        }
        for workload in [self.open_workloads(Kind::Launch), self.open_workloads(Kind::Warm)].concat() {
            let cases = order.iter().flat_map(|&index| self.plan.cases_of(index));
            let cases: Vec<usize> =
                cases.filter(|&case| self.is_open(case) && self.label_of(case) == workload).collect();
            let rounds = cases.iter().map(|&case| self.plan.cases[case].workload.rounds).max().unwrap_or(0);
            for round in 0..rounds {
                let first = round as usize % cases.len().max(1);
                for &case in cases[first..].iter().chain(&cases[..first]) {
                    if self.failed.contains(&case) || self.pace.is_spent() {
                        continue;
                    }
                    let asked = self.one_shot(block, case, round).await;
                    let of = (self.plan.cases[case].configuration, self.last_launch());
                    self.survive(of, Some(case), asked)?;
                }
            }
        }
        Ok(())
    }

    async fn guest(&self, configuration: usize) -> Result<Guest> {
        let planned = &self.plan.configurations[configuration];
        let record = &self.recorder.record;
        let of_it =
            record.samples.iter().filter(|it| self.plan.cases[it.case].configuration == configuration);
        let most = of_it.filter_map(|sample| sample.peak_resident_bytes).max();
        let guess = async || {
            let path = planned.model.path.clone();
            let weights = || model_files::ModelFolder::open(path).map(|it| it.weights_bytes());
            let file = off_thread(weights).await?.unwrap_or(0);
            let bits = planned.dtype.as_deref().and_then(dtype::bits);
            let made = planned.model.sizes.zip(bits).map(|(it, bits)| it.parameters as f64 * bits / 8.0);
            let made = made.map_or(file.saturating_mul(WIDENED_TIMES), |bytes| bytes as u64);
            anyhow::Ok(file.saturating_add(made).saturating_add(PROGRAM_BYTES))
        };
        // What works for it elsewhere cannot be stopped from here.
        let elsewhere = |it: &Launch| it.loaded.as_ref().is_some_and(|loaded| !loaded.pids.is_empty());
        let mut launches = record.launches.iter().filter(|it| it.configuration == configuration);
        let alone = planned.alone || launches.any(elsewhere);
        let bytes = match most {
            Some(most) => most,
            None => guess().await?,
        };
        Ok(Guest { configuration, bytes, alone })
    }

    /// A process that is asked once and ends.
    async fn one_shot(&mut self, block: u32, case: usize, round: u32) -> Result<(), Stop> {
        let index = self.plan.cases[case].configuration;
        let mut launched: Launched = self.start(index, Purpose::Once(block)).await?;
        let asked = self.ask_cold(&mut launched, case, round).await;
        self.end(launched, false).await?;
        asked
    }
}
