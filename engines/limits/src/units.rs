//! Operations per second of each arithmetic unit of a core, with operands in registers. The tiles of AMX are also measured with
//! operands from the nearest cache, because no matrix product can keep all operands in tiles.

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::hint::black_box;
use std::time::Duration;

use crate::{Operations, names, team};

/// A loop over one kind of arithmetic, with enough independent results that no instruction waits for an earlier one.
#[derive(Clone, Copy)]
struct Unit {
    name: &'static str,
    /// Whether every round loads its operands from the nearest cache.
    loads: bool,
    /// Operations of one round of the loop.
    operations_per_round: u64,
    /// Runs this number of rounds. The machine must support the unit; `all_units` guarantees this.
    run: unsafe fn(u64),
}

/// The fewest operations of a thread in a pass. In shorter passes, the time between the starts of the threads (`team`) would
/// count too much. Longer passes are disturbed more often.
const MIN_PASS_OPERATIONS: u64 = 1 << 26;
/// The fewest rounds of a thread in a pass. For units with many operations per round, such as tiles, this limit is
/// the larger one.
const MIN_PASS_ROUNDS: u64 = 1 << 14;

/// The fastest pass of each unit of this machine.
pub fn probe(processors: &[usize], budget: Duration) -> Vec<Operations> {
    let units = all_units();
    let best =
        team::fastest_passes(processors, units.len(), budget, |_| (), |(), setting| units[setting].pass());
    let times = best.unwrap_or_default();
    let operations = units.iter().zip(times).filter_map(|(unit, ns)| {
        Some(Operations {
            unit: unit.name.into(),
            loads: unit.loads,
            threads: u32::try_from(processors.len()).ok()?,
            operations: unit.rounds() * unit.operations_per_round * processors.len() as u64,
            ns,
        })
    });
    operations.collect()
}

impl Unit {
    /// A unit that computes and adds this number of products in a round, with operands in registers.
    const fn in_registers(name: &'static str, products: usize, run: unsafe fn(u64)) -> Self {
        Self { name, loads: false, operations_per_round: 2 * products as u64, run }
    }

    fn rounds(&self) -> u64 {
        MIN_PASS_OPERATIONS.div_ceil(self.operations_per_round).max(MIN_PASS_ROUNDS)
    }

    #[expect(unsafe_code, reason = "kernels need instructions that not every machine has")]
    fn pass(&self) {
        // SAFETY: `all_units` lists only units of this machine.
        unsafe { (self.run)(self.rounds()) };
    }
}

/// The units of this machine; exactly one has the name `F32_FMA`.
fn all_units() -> Vec<Unit> {
    #[cfg(target_arch = "x86_64")]
    let mut units: Vec<Unit> = x86::supported().chain(amx::supported()).collect();
    #[cfg(target_arch = "aarch64")]
    let mut units: Vec<Unit> = arm::supported().collect();
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let mut units: Vec<Unit> = Vec::new();
    if !units.iter().any(|unit| unit.name == names::F32_FMA) {
        units.insert(0, PORTABLE_F32);
    }
    units
}

/// The number of sums of `PORTABLE_F32`. They fill several vectors.
const PORTABLE_LANES: usize = 64;

/// A multiplication and an addition in plain Rust, which the compiler does not fuse.
const PORTABLE_F32: Unit = Unit::in_registers(names::F32_FMA, PORTABLE_LANES, multiply_and_add);

fn multiply_and_add(rounds: u64) {
    let (half, one) = (black_box(0.5f32), black_box(1.0f32));
    let mut sums = [1.0f32; PORTABLE_LANES];
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum = *sum * half + one;
        }
    }
    black_box(sums);
}

/// NEON: f32 in vectors of 128 bits.
#[cfg(target_arch = "aarch64")]
mod arm {
    use std::arch::aarch64::*;

    use super::*;

    /// Independent sums: enough for four pipes with a latency of four cycles. 32 registers hold them and two operands.
    const SUMS: usize = 24;
    const LANES: usize = 4;

    pub fn supported() -> impl Iterator<Item = Unit> {
        let f32_unit = Unit::in_registers(names::F32_FMA, SUMS * LANES, neon);
        std::arch::is_aarch64_feature_detected!("neon").then_some(f32_unit).into_iter()
    }

    #[target_feature(enable = "neon")]
    fn neon(rounds: u64) {
        let (half, one) = (black_box(vdupq_n_f32(0.5)), black_box(vdupq_n_f32(1.0)));
        let mut sums = [one; SUMS];
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = vfmaq_f32(*sum, half, one);
            }
        }
        black_box(sums);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_unit_runs_on_this_machine_and_is_listed_once() {
        let units = all_units();
        for (index, unit) in units.iter().enumerate() {
            unit.pass();
            let is_same = |other: &Unit| (other.name, other.loads) == (unit.name, unit.loads);
            assert!(units[..index].iter().all(|other| !is_same(other)), "{} twice", unit.name);
            assert!(unit.rounds() * unit.operations_per_round >= MIN_PASS_OPERATIONS);
        }
        assert_eq!(units.iter().filter(|unit| unit.name == names::F32_FMA).count(), 1);
        #[expect(unsafe_code, reason = "as in `pass`")]
        // SAFETY: the portable unit has no requirements.
        unsafe {
            (PORTABLE_F32.run)(1000);
        }
    }
}
