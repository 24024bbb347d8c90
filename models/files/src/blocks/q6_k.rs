//! Q6_K: 256 numbers of 6 bits in 16 runs of 16, each with a scale of 8 bits. 6.5625 bits a number.
//!
//! ```text
//! byte  0  q[128]  two of 4 bits, the lower bits
//!     128  h[64]   four of 2 bits, the upper bits
//!     192  s[16]   i8, the scales of the runs
//!     208  d       f16           number i = (d * scale of run i / 16) * (q_i - 32)
//!
//! Of the 128 numbers of each half, with 64 bytes of q and 32 of h: number 32 k + l is in byte 32 (k % 2) + l of q, in its
//! lower half for k < 2 and its upper half otherwise, and in byte l of h at bit 2 k.
//! ```
//!
//! The format defines only the reading. This choice of scales aims at the least squared error:
//!
//! 1. For each run alone, find a real-valued scale: the number of largest magnitude maps near -32, whatever its sign. Several
//!    steps around this scale are tried, each followed by the least-squares scale for its integers.
//! 2. `d` is the scale of largest magnitude / -128, rounded away from zero to f16.
//! 3. For each run, try the three integers nearest to the ideal scale, and take the least true error.
//! 4. With all integers fixed, fit `d` by least squares again; keep it if the error is smaller.

use half::f16;

use super::float::f16_at_least;
use super::k_quants::{Rows, lanes, nearest, rows, safe_inverse};
use super::{Dtype, Encoding, f16_at, largest_magnitude, narrow_blocks, widen_blocks};

impl Dtype {
    pub const Q6K: Self = Self(&Encoding {
        name: "Q6_K",
        gguf: 14,
        file_type: Some(18),
        block: (256, 210),
        widen: |bytes, values| widen_blocks(bytes, values, widen),
        narrow: Some(|values, bytes| narrow_blocks(values, bytes, narrow)),
        ..Encoding::READ_ONLY
    });
}

const RUNS: usize = 16;
const LENGTH: usize = 16;
type Lanes = [f32; RUNS];

fn widen(block: &[u8; 210], values: &mut [f32; 256]) {
    let d = f16_at(block, 208);
    for (run, values) in values.as_chunks_mut::<LENGTH>().0.iter_mut().enumerate() {
        let scale = d * f32::from(block[192 + run].cast_signed());
        let position = Position::of(run);
        let (lower, upper) = (&block[position.lower..], &block[128 + position.upper..]);
        for ((value, lower), upper) in values.iter_mut().zip(lower).zip(upper) {
            let quant = lower >> position.lower_bit & 15 | (upper >> position.upper_bit & 3) << 4;
            *value = scale * (f32::from(quant) - 32.0);
        }
    }
}

fn narrow(values: &[f32; 256], block: &mut [u8; 210]) -> Option<()> {
    // The sums of squares below must not overflow; refused blocks are far beyond the range of `d`.
    largest_magnitude(values).filter(|magnitude| *magnitude < 1e15)?;
    let rows: Rows<RUNS, LENGTH> = rows(values);
    let steps = fit_runs(&rows);
    let peak = peak(steps.into_iter());
    let d = f16_at_least(peak.abs() / 128.0)?;
    let d = if peak > 0.0 { -d } else { d };
    let mut best = Quantised::near_ideal(&rows, d, steps);
    let refined = best.refine(&rows);
    if refined.error < best.error {
        best = refined;
    }
    best.write(&rows, block);
    Some(())
}

/// The position of the bits of a run's 16 numbers: the first of 16 bytes, and the bit in each.
struct Position {
    lower: usize,
    lower_bit: usize,
    upper: usize,
    upper_bit: usize,
}

impl Position {
    fn of(run: usize) -> Self {
        let (half, k, odd) = (run / 8, run % 8 / 2, run % 2);
        Self {
            lower: half * 64 + k % 2 * 32 + odd * 16,
            lower_bit: k / 2 * 4,
            upper: half * 32 + odd * 16,
            upper_bit: k * 2,
        }
    }
}

/// The first number of largest magnitude.
fn peak(values: impl Iterator<Item = f32>) -> f32 {
    values.fold(0.0, |peak: f32, value| if value.abs() > peak.abs() { value } else { peak })
}

/// The best step of each run, x = step * q, as a real number.
fn fit_runs(rows: &Rows<RUNS, LENGTH>) -> Lanes {
    let mut peak = [0.0_f32; RUNS];
    for row in rows {
        for run in 0..RUNS {
            peak[run] = if row[run].abs() > peak[run].abs() { row[run] } else { peak[run] };
        }
    }
    // The run is scaled so that its peak is -32: size and sign do not matter below.
    let unit = peak.map(|peak| peak / -32.0);
    let inverse = unit.map(safe_inverse);
    let mut scaled = *rows;
    for row in &mut scaled {
        for run in 0..RUNS {
            row[run] *= inverse[run];
        }
    }
    let mut best = Steps { step: [0.0; RUNS], gain: [0.0; RUNS] };
    for offset in STEP_OFFSETS {
        best.consider(&scaled, [1.0 + offset / 32.0; RUNS]);
    }
    best.consider(&scaled, best.step.map(safe_inverse));
    lanes(|run| best.step[run] * unit[run])
}

/// Offsets from 32, the number of steps into which the largest number is first divided.
const STEP_OFFSETS: [f32; 9] = [-0.8, -0.6, -0.4, -0.2, 0.0, 0.2, 0.4, 0.6, 0.8];

/// The best step so far for each run, and its reduction of the sum of squares.
struct Steps {
    step: Lanes,
    gain: Lanes,
}

impl Steps {
    /// Fits the least-squares step to the integers of `inverse`, and keeps it in the runs where it is better.
    #[inline(always)]
    fn consider(&mut self, rows: &Rows<RUNS, LENGTH>, inverse: Lanes) {
        let (mut qq, mut xq) = ([0.0; RUNS], [0.0; RUNS]);
        for row in rows {
            for run in 0..RUNS {
                let q = nearest((row[run] * inverse[run]).clamp(-32.0, 31.0));
                qq[run] += q * q;
                xq[run] += row[run] * q;
            }
        }
        for run in 0..RUNS {
            let step = if qq[run] > 0.0 { xq[run] / qq[run] } else { 0.0 };
            let gain = step * xq[run];
            let better = gain > self.gain[run];
            self.gain[run] = if better { gain } else { self.gain[run] };
            self.step[run] = if better { step } else { self.step[run] };
        }
    }
}

/// The offsets to try, from the ideal scale.
const SCALE_OFFSETS: [f32; 2] = [-1.0, 1.0];

/// The scales of a block, without its integers.
struct Quantised {
    d: f32,
    scales: Lanes,
    error: f32,
}

impl Quantised {
    /// The best integers for this `d`, among the neighbours of the ideal integers.
    fn near_ideal(rows: &Rows<RUNS, LENGTH>, d: f32, steps: Lanes) -> Self {
        let per_d = safe_inverse(d);
        let ideal: Lanes = lanes(|run| nearest((steps[run] * per_d).clamp(-128.0, 127.0)));
        let mut scales = ideal;
        let mut error = errors(rows, d, ideal);
        for offset in SCALE_OFFSETS {
            let scale: Lanes = lanes(|run| (ideal[run] + offset).clamp(-128.0, 127.0));
            let trial_error = errors(rows, d, scale);
            for run in 0..RUNS {
                let better = trial_error[run] < error[run];
                error[run] = if better { trial_error[run] } else { error[run] };
                scales[run] = if better { scale[run] } else { scales[run] };
            }
        }
        Self { d, scales, error: error.iter().sum() }
    }

    /// The same integers with the best-fitting `d`.
    fn refine(&self, rows: &Rows<RUNS, LENGTH>) -> Self {
        let inverse: Lanes = lanes(|run| safe_inverse(self.d * self.scales[run]));
        let (mut aa, mut ax) = ([0.0; RUNS], [0.0; RUNS]);
        for row in rows {
            for run in 0..RUNS {
                let a = self.scales[run] * nearest((row[run] * inverse[run]).clamp(-32.0, 31.0));
                aa[run] += a * a;
                ax[run] += a * row[run];
            }
        }
        let aa: f32 = aa.iter().sum();
        let ax: f32 = ax.iter().sum();
        let d = f16::from_f32(if aa > 0.0 { ax / aa } else { 0.0 }).to_f32();
        let error = errors(rows, d, self.scales).iter().sum();
        Self { d, error, ..*self }
    }

    fn write(&self, rows: &Rows<RUNS, LENGTH>, block: &mut [u8; 210]) {
        let inverse: Lanes = lanes(|run| safe_inverse(self.d * self.scales[run]));
        block.fill(0);
        for run in 0..RUNS {
            let position = Position::of(run);
            for (i, row) in rows.iter().enumerate() {
                let quant = (nearest((row[run] * inverse[run]).clamp(-32.0, 31.0)) + 32.0) as u8;
                block[position.lower + i] |= (quant & 15) << position.lower_bit;
                block[128 + position.upper + i] |= quant >> 4 << position.upper_bit;
            }
            block[192 + run] = (self.scales[run] as i8).cast_unsigned();
        }
        block[208..].copy_from_slice(&f16::from_f32(self.d).to_le_bytes());
    }
}

/// The squared error of each run, with its numbers rounded to the nearest representable numbers.
#[inline(always)]
fn errors(rows: &Rows<RUNS, LENGTH>, d: f32, scales: Lanes) -> Lanes {
    let step: Lanes = lanes(|run| d * scales[run]);
    let inverse = step.map(safe_inverse);
    let mut error = [0.0; RUNS];
    for row in rows {
        for run in 0..RUNS {
            let difference = step[run] * nearest((row[run] * inverse[run]).clamp(-32.0, 31.0)) - row[run];
            error[run] += difference * difference;
        }
    }
    error
}
