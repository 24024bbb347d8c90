//! Q6_K: 256 numbers of 6 bits in 16 groups of 16, each with a scale of 8 bits. 6.5625 bits a number.
//!
//! ```text
//! byte  0  q[128]  two of 4 bits, the lower bits
//!     128  h[64]   four of 2 bits, the upper bits
//!     192  s[16]   i8, the scales of the groups
//!     208  d       f16           number i = (d * scale of group i / 16) * (q_i - 32)
//!
//! Of the 128 numbers of each half, with 64 bytes of q and 32 of h: number 32 k + l is in byte 32 (k % 2) + l of q, in its
//! lower half for k < 2 and its upper half otherwise, and in byte l of h at bit 2 k.
//! ```
//!
//! The format defines only the reading. The writer here searches for the scales with the least squared error:
//!
//! 1. For each group alone, find a real step: number = step * q. The number of largest magnitude is to become about -32,
//!    whatever its sign. Several such steps are tried, each followed by the least-squares step for its integers.
//! 2. `d` is the step of largest magnitude / -128, rounded away from zero to f16.
//! 3. For each group, try the three scales nearest to step / `d`, and take that with the least error of the stored numbers.
//! 4. With all scales fixed, fit `d` by least squares again; keep it if the error is smaller.

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
        ..Encoding::QUANTIZED
    });
}

const GROUPS: usize = 16;
const LENGTH: usize = 16;
type Lanes = [f32; GROUPS];

fn widen(block: &[u8; 210], values: &mut [f32; 256]) {
    let d = f16_at(block, 208);
    for (group, values) in values.as_chunks_mut::<LENGTH>().0.iter_mut().enumerate() {
        let scale = d * f32::from(block[192 + group].cast_signed());
        let position = Position::of(group);
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
    let rows: Rows<GROUPS, LENGTH> = rows(values);
    let steps = fit_groups(&rows);
    let peak = peak(steps.into_iter());
    let d = f16_at_least(peak.abs() / 128.0)?;
    let d = if peak > 0.0 { -d } else { d };
    let mut best = Quantized::near_ideal(&rows, d, steps);
    let refined = best.refine(&rows);
    if refined.error < best.error {
        best = refined;
    }
    best.write(&rows, block);
    Some(())
}

/// The position of a group's 16 numbers: the first of their bytes in q (`lower`) and in h (`upper`), and the bit in a byte.
struct Position {
    lower: usize,
    lower_bit: usize,
    upper: usize,
    upper_bit: usize,
}

impl Position {
    fn of(group: usize) -> Self {
        let (half, k, odd) = (group / 8, group % 8 / 2, group % 2);
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

/// The best step of each group: number = step * q.
fn fit_groups(rows: &Rows<GROUPS, LENGTH>) -> Lanes {
    let mut peak = [0.0_f32; GROUPS];
    for row in rows {
        for group in 0..GROUPS {
            peak[group] = if row[group].abs() > peak[group].abs() { row[group] } else { peak[group] };
        }
    }
    // Each group is scaled so that its peak is -32: size and sign do not matter below.
    let unit = peak.map(|peak| peak / -32.0);
    let inverse = unit.map(safe_inverse);
    let mut scaled = *rows;
    for row in &mut scaled {
        for group in 0..GROUPS {
            row[group] *= inverse[group];
        }
    }
    let mut best = Steps { step: [0.0; GROUPS], gain: [0.0; GROUPS] };
    for offset in STEP_OFFSETS {
        best.consider(&scaled, [1.0 + offset / 32.0; GROUPS]);
    }
    best.consider(&scaled, best.step.map(safe_inverse));
    lanes(|group| best.step[group] * unit[group])
}

/// Each trial divides the number of largest magnitude into 32 steps plus this fraction of a step.
const STEP_OFFSETS: [f32; 9] = [-0.8, -0.6, -0.4, -0.2, 0.0, 0.2, 0.4, 0.6, 0.8];

/// The best step so far for each group, and the squared error that it saves, compared with zeros in place of all numbers.
struct Steps {
    step: Lanes,
    gain: Lanes,
}

impl Steps {
    /// Fits the least-squares step to the integers that `inverse` gives, and keeps it in the groups where it is better.
    #[inline(always)]
    fn consider(&mut self, rows: &Rows<GROUPS, LENGTH>, inverse: Lanes) {
        let (mut qq, mut xq) = ([0.0; GROUPS], [0.0; GROUPS]);
        for row in rows {
            for group in 0..GROUPS {
                let q = nearest((row[group] * inverse[group]).clamp(-32.0, 31.0));
                qq[group] += q * q;
                xq[group] += row[group] * q;
            }
        }
        for group in 0..GROUPS {
            let step = if qq[group] > 0.0 { xq[group] / qq[group] } else { 0.0 };
            let gain = step * xq[group];
            let better = gain > self.gain[group];
            self.gain[group] = if better { gain } else { self.gain[group] };
            self.step[group] = if better { step } else { self.step[group] };
        }
    }
}

/// The offsets to try, from the ideal scale.
const SCALE_OFFSETS: [f32; 2] = [-1.0, 1.0];

/// The scales of a block, and the squared error that they leave.
struct Quantized {
    d: f32,
    scales: Lanes,
    error: f32,
}

impl Quantized {
    /// The best scales for this `d`, among the neighbours of the ideal ones.
    fn near_ideal(rows: &Rows<GROUPS, LENGTH>, d: f32, steps: Lanes) -> Self {
        let per_d = safe_inverse(d);
        let ideal: Lanes = lanes(|group| nearest((steps[group] * per_d).clamp(-128.0, 127.0)));
        let mut scales = ideal;
        let mut error = errors(rows, d, ideal);
        for offset in SCALE_OFFSETS {
            let scale: Lanes = lanes(|group| (ideal[group] + offset).clamp(-128.0, 127.0));
            let trial_error = errors(rows, d, scale);
            for group in 0..GROUPS {
                let better = trial_error[group] < error[group];
                error[group] = if better { trial_error[group] } else { error[group] };
                scales[group] = if better { scale[group] } else { scales[group] };
            }
        }
        Self { d, scales, error: error.iter().sum() }
    }

    /// The same scales with the best-fitting `d`.
    fn refine(&self, rows: &Rows<GROUPS, LENGTH>) -> Self {
        let inverse: Lanes = lanes(|group| safe_inverse(self.d * self.scales[group]));
        let (mut aa, mut ax) = ([0.0; GROUPS], [0.0; GROUPS]);
        for row in rows {
            for group in 0..GROUPS {
                let a = self.scales[group] * nearest((row[group] * inverse[group]).clamp(-32.0, 31.0));
                aa[group] += a * a;
                ax[group] += a * row[group];
            }
        }
        let aa: f32 = aa.iter().sum();
        let ax: f32 = ax.iter().sum();
        let d = f16::from_f32(if aa > 0.0 { ax / aa } else { 0.0 }).to_f32();
        let error = errors(rows, d, self.scales).iter().sum();
        Self { d, error, ..*self }
    }

    fn write(&self, rows: &Rows<GROUPS, LENGTH>, block: &mut [u8; 210]) {
        let inverse: Lanes = lanes(|group| safe_inverse(self.d * self.scales[group]));
        block.fill(0);
        for group in 0..GROUPS {
            let position = Position::of(group);
            for (i, row) in rows.iter().enumerate() {
                let quant = (nearest((row[group] * inverse[group]).clamp(-32.0, 31.0)) + 32.0) as u8;
                block[position.lower + i] |= (quant & 15) << position.lower_bit;
                block[128 + position.upper + i] |= quant >> 4 << position.upper_bit;
            }
            block[192 + group] = (self.scales[group] as i8).cast_unsigned();
        }
        block[208..].copy_from_slice(&f16::from_f32(self.d).to_le_bytes());
    }
}

/// The squared error of each group, with its numbers rounded to the nearest representable numbers.
#[inline(always)]
fn errors(rows: &Rows<GROUPS, LENGTH>, d: f32, scales: Lanes) -> Lanes {
    let step: Lanes = lanes(|group| d * scales[group]);
    let inverse = step.map(safe_inverse);
    let mut error = [0.0; GROUPS];
    for row in rows {
        for group in 0..GROUPS {
            let difference =
                step[group] * nearest((row[group] * inverse[group]).clamp(-32.0, 31.0)) - row[group];
            error[group] += difference * difference;
        }
    }
    error
}
