//! Q4_K: 256 numbers of 4 bits in 8 runs of 32, each with a scale and a minimum of 6 bits. 4.5 bits a number.
//!
//! ```text
//! byte  0  d       f16
//!       2  dmin    f16
//!       4  s[12]   scales and minima of the 8 runs of 32 numbers, packed as `unpack_scale` describes
//!      16  q[128]  two of 4 bits     number i = (d * scale) * q_i - dmin * minimum, both of run i / 32
//!
//! Of 64 numbers, the first 32 are the lower halves of 32 bytes of q, and the other 32 the upper halves.
//! ```
//!
//! The format defines only the reading. This choice of scales aims at the least squared error:
//!
//! 1. For each run alone, find a real-valued scale and minimum. Steps around (max - min) / 15 are tried, each with the
//!    least-squares line through its integers; the best line is then improved: round to it and fit again.
//! 2. `d` and `dmin` are the largest of each / 63, rounded up to f16, so that nothing exceeds 63 even with a coarse f16.
//! 3. For each run, try the three scales nearest to the ideal one, each with the best minimum and its neighbours, and take
//!    the least true error.
//! 4. With all integers fixed, fit `d` and `dmin` by least squares again; keep them if the error is smaller.
//!
//! As in all existing files, `d` and `dmin` are not negative. So 0 can always be represented, and a run of only positive
//! numbers has the minimum 0.

use half::f16;

use super::float::f16_at_least;
use super::k_quants::{Rows, lanes, nearest, pack_scales, rows, safe_inverse, unpack_scale};
use super::{Dtype, Encoding, f16_at, largest_magnitude, narrow_blocks, widen_blocks};

impl Dtype {
    pub const Q4K: Self = Self(&Encoding {
        name: "Q4_K",
        gguf: 12,
        file_type: Some(14),
        block: (256, 144),
        widen: |bytes, values| widen_blocks(bytes, values, widen),
        narrow: Some(|values, bytes| narrow_blocks(values, bytes, narrow)),
        ..Encoding::READ_ONLY
    });
}

const RUNS: usize = 8;
const LENGTH: usize = 32;
type Lanes = [f32; RUNS];

fn widen(block: &[u8; 144], values: &mut [f32; 256]) {
    let (d, dmin) = (f16_at(block, 0), f16_at(block, 2));
    for (run, values) in values.as_chunks_mut::<LENGTH>().0.iter_mut().enumerate() {
        let (scale, minimum) = unpack_scale(&block[4..16], run);
        let (scale, minimum) = (d * f32::from(scale), dmin * f32::from(minimum));
        let shift = run % 2 * 4;
        for (value, quant) in values.iter_mut().zip(&block[16 + run / 2 * LENGTH..]) {
            *value = scale * f32::from(quant >> shift & 15) - minimum;
        }
    }
}

fn narrow(values: &[f32; 256], block: &mut [u8; 144]) -> Option<()> {
    // The sums of squares below must not overflow; refused blocks are far beyond the range of `d`.
    largest_magnitude(values).filter(|magnitude| *magnitude < 1e15)?;
    let rows: Rows<RUNS, LENGTH> = rows(values);
    let (steps, floors) = fit_runs(&rows);
    let d = f16_at_least(largest(steps) / 63.0)?;
    let dmin = f16_at_least(largest(lanes(|run| -floors[run])) / 63.0)?;
    let mut best = Quantised::near_ideal(&rows, d, dmin, steps, floors);
    if let Some(refined) = best.refine(&rows)
        && refined.error < best.error
    {
        best = refined;
    }
    best.write(&rows, block);
    Some(())
}

/// The greatest lane, or 0 if none is positive.
fn largest(values: Lanes) -> f32 {
    values.into_iter().fold(0.0, |largest, value| if value > largest { value } else { largest })
}

/// Sums over the integers that each run's numbers round to.
#[derive(Default)]
struct Sums {
    q: Lanes,
    qq: Lanes,
    xq: Lanes,
}

impl Sums {
    /// q = nearest(x * inverse + shift), from 0 to 15.
    #[inline(always)]
    fn of(rows: &Rows<RUNS, LENGTH>, inverse: Lanes, shift: Lanes) -> Self {
        let mut sums = Self::default();
        for row in rows {
            for run in 0..RUNS {
                let q = nearest((row[run] * inverse[run] + shift[run]).clamp(0.0, 15.0));
                sums.q[run] += q;
                sums.qq[run] += q * q;
                sums.xq[run] += row[run] * q;
            }
        }
        sums
    }
}

/// The runs, each scaled to the range from 0 to 15, so that size and sign of its numbers do not affect the fit.
struct Scaled {
    rows: Rows<RUNS, LENGTH>,
    sum: Lanes,
    squares: Lanes,
    /// The position of 0: between 0 and 15, or above 15 if all numbers are negative. A floor cannot be above it.
    zero: Lanes,
}

/// The best line so far for each run: number = step * q + floor.
struct Lines {
    step: Lanes,
    floor: Lanes,
    error: Lanes,
}

/// The best step and floor of each run, both real numbers.
fn fit_runs(rows: &Rows<RUNS, LENGTH>) -> (Lanes, Lanes) {
    let (mut low, mut high) = ([0.0_f32; RUNS], rows[0]);
    for row in rows {
        for run in 0..RUNS {
            low[run] = if row[run] < low[run] { row[run] } else { low[run] };
            high[run] = if row[run] > high[run] { row[run] } else { high[run] };
        }
    }
    let unit: Lanes = lanes(|run| (high[run] - low[run]) / 15.0);
    let inverse = unit.map(safe_inverse);
    let zero = lanes(|run| -low[run] * inverse[run]);
    let mut scaled = Scaled { rows: *rows, sum: [0.0; RUNS], squares: [0.0; RUNS], zero };
    for row in &mut scaled.rows {
        for run in 0..RUNS {
            row[run] = (row[run] - low[run]) * inverse[run];
            scaled.sum[run] += row[run];
            scaled.squares[run] += row[run] * row[run];
        }
    }
    let mut best = Lines { step: [1.0; RUNS], floor: [0.0; RUNS], error: [f32::MAX; RUNS] };
    for offset in STEP_OFFSETS {
        best.consider(&scaled, [1.0 + offset / 15.0; RUNS], [0.0; RUNS]);
    }
    for _ in 0..REFINEMENTS {
        let inverse = best.step.map(safe_inverse);
        best.consider(&scaled, inverse, lanes(|run| -best.floor[run] * inverse[run]));
    }
    (lanes(|run| best.step[run] * unit[run]), lanes(|run| best.floor[run] * unit[run] + low[run]))
}

/// Offsets from 15, the number of steps into which the range of a run is first divided.
const STEP_OFFSETS: [f32; 11] = [-1.5, -1.2, -0.9, -0.6, -0.3, 0.0, 0.3, 0.6, 0.9, 1.2, 1.5];
/// The number of improvements of the best line; a third one changes the error by less than 0.1 %.
const REFINEMENTS: usize = 2;

impl Lines {
    /// Fits the least-squares line to the integers of `inverse` and `shift`, and keeps it in the runs where it is better.
    #[inline(always)]
    fn consider(&mut self, scaled: &Scaled, inverse: Lanes, shift: Lanes) {
        let n = LENGTH as f32;
        let sums = Sums::of(&scaled.rows, inverse, shift);
        for run in 0..RUNS {
            let (q, qq, xq) = (sums.q[run], sums.qq[run], sums.xq[run]);
            let (x, xx, zero) = (scaled.sum[run], scaled.squares[run], scaled.zero[run]);
            let determinant = n * qq - q * q;
            let step = if determinant > 0.0 { (n * xq - q * x) / determinant } else { 0.0 };
            let floor = (x - step * q) / n;
            // A floor above zero cannot be represented: then the line goes through zero.
            let step_through_zero = if qq > 0.0 { (xq - zero * q) / qq } else { 0.0 };
            let step_through_zero = if step_through_zero > 0.0 { step_through_zero } else { 0.0 };
            let (step, floor) = if floor > zero { (step_through_zero, zero) } else { (step, floor) };
            let error =
                xx - 2.0 * (step * xq + floor * x) + step * (step * qq + 2.0 * floor * q) + n * floor * floor;
            let better = error < self.error[run];
            self.error[run] = if better { error } else { self.error[run] };
            self.step[run] = if better { step } else { self.step[run] };
            self.floor[run] = if better { floor } else { self.floor[run] };
        }
    }
}

/// The offsets to try, from the ideal scale and from the ideal minimum.
const SCALE_OFFSETS: [f32; 3] = [0.0, -1.0, 1.0];

/// The scales of a block, without its integers.
struct Quantised {
    d: f32,
    dmin: f32,
    scales: Lanes,
    minima: Lanes,
    error: f32,
}

impl Quantised {
    /// The best integers for this `d` and `dmin`, among the neighbours of the ideal integers.
    fn near_ideal(rows: &Rows<RUNS, LENGTH>, d: f32, dmin: f32, steps: Lanes, floors: Lanes) -> Self {
        let (per_d, per_dmin) = (safe_inverse(d), safe_inverse(dmin));
        let ideal: Lanes = lanes(|run| nearest((steps[run] * per_d).clamp(0.0, 63.0)));
        let first: Lanes = lanes(|run| nearest((-floors[run] * per_dmin).clamp(0.0, 63.0)));
        let (mut scales, mut minima) = (ideal, first);
        let mut error = errors(rows, d, dmin, scales, minima);
        for offset in SCALE_OFFSETS {
            let scale: Lanes = lanes(|run| (ideal[run] + offset).clamp(0.0, 63.0));
            // The best minimum for the integers that this scale gives.
            let step: Lanes = lanes(|run| d * scale[run]);
            let inverse = step.map(safe_inverse);
            let floor: Lanes = lanes(|run| dmin * first[run]);
            let mut excess = [0.0; RUNS];
            for row in rows {
                for run in 0..RUNS {
                    let q = nearest(((row[run] + floor[run]) * inverse[run]).clamp(0.0, 15.0));
                    excess[run] += step[run] * q - row[run];
                }
            }
            let centre: Lanes =
                lanes(|run| nearest((excess[run] / LENGTH as f32 * per_dmin).clamp(0.0, 63.0)));
            for offset in SCALE_OFFSETS {
                let minimum: Lanes = lanes(|run| (centre[run] + offset).clamp(0.0, 63.0));
                let trial_error = errors(rows, d, dmin, scale, minimum);
                for run in 0..RUNS {
                    let better = trial_error[run] < error[run];
                    error[run] = if better { trial_error[run] } else { error[run] };
                    scales[run] = if better { scale[run] } else { scales[run] };
                    minima[run] = if better { minimum[run] } else { minima[run] };
                }
            }
        }
        Self { d, dmin, scales, minima, error: error.iter().sum() }
    }

    /// The same integers with the best-fitting `d` and `dmin`.
    fn refine(&self, rows: &Rows<RUNS, LENGTH>) -> Option<Self> {
        let step: Lanes = lanes(|run| self.d * self.scales[run]);
        let floor: Lanes = lanes(|run| self.dmin * self.minima[run]);
        let inverse = step.map(safe_inverse);
        let shift = lanes(|run| floor[run] * inverse[run]);
        let sums = Sums::of(rows, inverse, shift);
        let mut x = [0.0; RUNS];
        for row in rows {
            for (x, value) in x.iter_mut().zip(row) {
                *x += value;
            }
        }
        // x = d * (scale q) - dmin * minimum, over all runs: two equations for two unknowns.
        let (mut aa, mut ab, mut bb, mut ax, mut bx) = (0.0, 0.0, 0.0, 0.0, 0.0);
        for (run, x) in x.into_iter().enumerate() {
            let (scale, minimum) = (self.scales[run], self.minima[run]);
            aa += scale * scale * sums.qq[run];
            ab += scale * minimum * sums.q[run];
            bb += minimum * minimum * LENGTH as f32;
            ax += scale * sums.xq[run];
            bx += minimum * x;
        }
        let (d, dmin) = if bb > 0.0 {
            let determinant = aa * bb - ab * ab;
            ((ax * bb - ab * bx) / determinant, (ab * ax - aa * bx) / determinant)
        } else {
            (ax / aa, 0.0)
        };
        // This also covers a system without a unique solution, where both are NaN.
        if !(d >= 0.0 && dmin >= 0.0) {
            return None;
        }
        let (d, dmin) = (f16::from_f32(d).to_f32(), f16::from_f32(dmin).to_f32());
        let error = errors(rows, d, dmin, self.scales, self.minima).iter().sum();
        (d.is_finite() && dmin.is_finite()).then_some(Self { d, dmin, error, ..*self })
    }

    fn write(&self, rows: &Rows<RUNS, LENGTH>, block: &mut [u8; 144]) {
        let step: Lanes = lanes(|run| self.d * self.scales[run]);
        let floor: Lanes = lanes(|run| self.dmin * self.minima[run]);
        let inverse = step.map(safe_inverse);
        let mut quants = [[0_u8; RUNS]; LENGTH];
        for (quants, row) in quants.iter_mut().zip(rows) {
            for run in 0..RUNS {
                quants[run] = nearest(((row[run] + floor[run]) * inverse[run]).clamp(0.0, 15.0)) as u8;
            }
        }
        block[..2].copy_from_slice(&f16::from_f32(self.d).to_le_bytes());
        block[2..4].copy_from_slice(&f16::from_f32(self.dmin).to_le_bytes());
        let integers = |lanes: Lanes| lanes.map(|integer| integer as u8);
        block[4..16].copy_from_slice(&pack_scales(integers(self.scales), integers(self.minima)));
        for (pair, bytes) in block[16..].as_chunks_mut::<LENGTH>().0.iter_mut().enumerate() {
            for (byte, quants) in bytes.iter_mut().zip(&quants) {
                *byte = quants[2 * pair] | quants[2 * pair + 1] << 4;
            }
        }
    }
}

/// The squared error of each run, with its numbers rounded to the nearest representable numbers.
#[inline(always)]
fn errors(rows: &Rows<RUNS, LENGTH>, d: f32, dmin: f32, scales: Lanes, minima: Lanes) -> Lanes {
    let step: Lanes = lanes(|run| d * scales[run]);
    let floor: Lanes = lanes(|run| dmin * minima[run]);
    let inverse = step.map(safe_inverse);
    let mut error = [0.0; RUNS];
    for row in rows {
        for run in 0..RUNS {
            let above = row[run] + floor[run];
            let difference = step[run] * nearest((above * inverse[run]).clamp(0.0, 15.0)) - above;
            error[run] += difference * difference;
        }
    }
    error
}
