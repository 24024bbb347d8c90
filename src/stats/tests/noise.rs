//! Simulated blocks of two engines on a machine with noise.

use crate::interval::{Design, Evidence, Interval};
use crate::median;
use crate::random::Random;
use crate::ratio::Ratios;
use crate::stopping::{Analysis, Rule};

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Noise {
    Normal,
    /// Student's t with 3 degrees of freedom.
    HeavyTailed,
    /// The log ratio of a block is a log-normal value less its mean; the number is the deviation of the value's logarithm. Real
    /// machines have less skew: the ratio of two sides with the same noise is not skewed.
    Skewed(f64),
    /// The time of each engine in every round has a log-normal addition.
    SkewedTimes,
    /// The machine runs at its full speed or at 0.44 of it, for several rounds at a time. A round measures both engines in
    /// turn, so most slow rounds are slow for both.
    Plateaus,
    /// In one block of ten, on average, one of the two engines is slow in all rounds.
    HitOnEitherSide,
    /// As `HitOnEitherSide`, but it is always the first engine that is slow.
    HitOnOneSide,
}

pub const ALL: [Noise; 8] = [
    Noise::Normal,
    Noise::HeavyTailed,
    Noise::SkewedTimes,
    Noise::Skewed(0.5),
    Noise::Skewed(1.0),
    Noise::Plateaus,
    Noise::HitOnEitherSide,
    Noise::HitOnOneSide,
];

const ROUNDS: usize = 5;
/// The speed of a slow machine as a share of its full speed. The matrix unit of a real machine was measured at this share.
const SLOW_SPEED: f64 = 0.44;
/// The probability that one of the engines is slow in a block.
const HIT_PROBABILITY: f64 = 0.1;

pub struct Machine {
    noise: Noise,
    /// The deviation of a block's log ratio, apart from plateaus and hits. For `SkewedTimes`: the scale of
    /// the additions.
    deviation: f64,
    slow: bool,
    /// The mean number of rounds at one speed.
    pub rounds_at_one_speed: f64,
    pub random: Random,
}

impl Machine {
    pub fn new(noise: Noise, deviation: f64, seed: u64) -> Self {
        Self { noise, deviation, slow: false, rounds_at_one_speed: 6.0, random: Random::seeded(seed) }
    }

    /// The log ratio of a block of two equally fast engines: its true value is zero.
    pub fn block(&mut self) -> f64 {
        match self.noise {
            Noise::Normal => self.deviation * self.random.normal(),
            Noise::HeavyTailed => {
                let t = self.random.normal() / (self.random.chi_square(3) / 3.0).sqrt();
                self.deviation * t / 3f64.sqrt()
            }
            Noise::Skewed(sigma) => {
                let mean = (sigma * sigma / 2.0).exp();
                let unscaled_deviation = mean * (sigma * sigma).exp_m1().sqrt();
                self.deviation * ((sigma * self.random.normal()).exp() - mean) / unscaled_deviation
            }
            Noise::SkewedTimes => {
                let mut time = || (1.0 + self.deviation * self.random.normal().exp()).ln();
                median(&[(); ROUNDS].map(|()| time() - time())).unwrap()
            }
            Noise::Plateaus => self.median_log_ratio([0.0; 2]),
            Noise::HitOnEitherSide | Noise::HitOnOneSide => {
                let hit = if self.random.chance(HIT_PROBABILITY) { f64::ln(SLOW_SPEED) } else { 0.0 };
                let is_second = self.noise == Noise::HitOnEitherSide && self.random.chance(0.5);
                self.median_log_ratio(if is_second { [0.0, hit] } else { [hit, 0.0] })
            }
        }
    }

    /// The median log ratio over the rounds of a block.
    fn median_log_ratio(&mut self, true_log_speeds: [f64; 2]) -> f64 {
        median(&self.rounds(true_log_speeds).map(|[one, other]| one - other)).unwrap()
    }

    /// The log speeds of two engines in each round of a block. The engines take turns at being first.
    pub fn rounds(&mut self, true_log_speeds: [f64; 2]) -> [[f64; 2]; ROUNDS] {
        let plateaus = self.noise == Noise::Plateaus;
        // The deviation of one log speed. The median of five values has 0.54 times their deviation, and a ratio has two sides.
        let jitter = self.deviation / (0.54 * 2f64.sqrt());
        std::array::from_fn(|round| {
            let mut log_speeds = true_log_speeds;
            for turn in 0..2 {
                if plateaus && self.random.chance(1.0 / (2.0 * self.rounds_at_one_speed)) {
                    self.slow = !self.slow;
                }
                let machine_log_speed = if self.slow { SLOW_SPEED.ln() } else { 0.0 };
                log_speeds[(round + turn) % 2] += machine_log_speed + jitter * self.random.normal();
            }
            log_speeds
        })
    }

    /// Simulates an experiment that `rule` ends. Returns its last interval and its number of blocks. `shift` is the true log
    /// ratio.
    pub fn experiment(&mut self, rule: Rule, design: Design, shift: f64) -> (Interval, usize) {
        let mut blocks = Vec::new();
        let mut until = crate::INTERIM_ANALYSES[0];
        loop {
            blocks.extend((blocks.len()..until).map(|_| self.block() + shift));
            let interval =
                Evidence::of(&Ratios::of_blocks(&blocks), design).interval_of_enough_blocks().unwrap();
            match rule.analyse(blocks.len(), &[interval.half_width()]) {
                Analysis::GoOn { until: more } => until = more,
                Analysis::Stop(_) => return (interval, blocks.len()),
            }
        }
    }
}
