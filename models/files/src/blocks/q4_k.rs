//! Q4_K: 256 numbers of 4 bits in 8 groups of 32, each with a scale and a minimum of 6 bits. 4.5 bits a number.
//!
//! ```text
//! byte  0  d       f16
//!       2  dmin    f16
//!       4  s[12]   scales and minima of the 8 groups of 32 numbers, packed as `unpack_scale` describes
//!      16  q[128]  two of 4 bits in each byte     number i = (d * scale) * q_i - dmin * minimum, both of group i / 32
//!
//! Of each 64 numbers, the first 32 are the lower halves of 32 bytes of q, and the other 32 the upper halves.
//! ```
//!
//! The format defines only the reading. The writer here searches for the scales with the least squared error:
//!
//! 1. For each group alone, find a line with real coefficients: number = step * q + floor. Steps around (max - min) / 15,
//!    with min at most 0, are tried, each with the least-squares line through its integers; the best line is then improved:
//!    round to it, fit again.
//! 2. `d` is the largest step / 63 and `dmin` the largest -floor / 63, rounded up to f16: no scale or minimum exceeds 63.
//! 3. For each group, try the three scales nearest to step / `d`, each with the best minimum and its neighbours, and take
//!    those with the least error of the stored numbers.
//! 4. With all scales and minima fixed, fit `d` and `dmin` by least squares again; keep them if the error is smaller.
//!
//! As in llama.cpp's files, `d` and `dmin` are not negative. So no floor is above 0, and a group of only positive numbers
//! has the minimum 0.

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
        ..Encoding::QUANTIZED
    });
}

const GROUPS: usize = 8;
const LENGTH: usize = 32;
type Lanes = [f32; GROUPS];

fn widen(block: &[u8; 144], values: &mut [f32; 256]) {
    let (d, dmin) = (f16_at(block, 0), f16_at(block, 2));
    for (group, values) in values.as_chunks_mut::<LENGTH>().0.iter_mut().enumerate() {
        let (scale, minimum) = unpack_scale(&block[4..16], group);
        let (scale, minimum) = (d * f32::from(scale), dmin * f32::from(minimum));
        let shift = group % 2 * 4;
        for (value, quant) in values.iter_mut().zip(&block[16 + group / 2 * LENGTH..]) {
            *value = scale * f32::from(quant >> shift & 15) - minimum;
        }
    }
}

fn narrow(values: &[f32; 256], block: &mut [u8; 144]) -> Option<()> {
    // The sums of squares below must not overflow; refused blocks are far beyond the range of `d`.
    largest_magnitude(values).filter(|magnitude| *magnitude < 1e15)?;
    let rows: Rows<GROUPS, LENGTH> = rows(values);
    let (steps, floors) = fit_groups(&rows);
    let d = f16_at_least(largest(steps) / 63.0)?;
    let dmin = f16_at_least(largest(lanes(|group| -floors[group])) / 63.0)?;
    let mut best = Quantized::near_ideal(&rows, d, dmin, steps, floors);
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

/// Sums over a group's numbers `x` and the integers `q` that they round to.
#[derive(Default)]
struct Sums {
    q: Lanes,
    qq: Lanes,
    xq: Lanes,
}

impl Sums {
    /// q = nearest(x * inverse + shift), from 0 to 15.
    #[inline(always)]
    fn of(rows: &Rows<GROUPS, LENGTH>, inverse: Lanes, shift: Lanes) -> Self {
        let mut sums = Self::default();
        for row in rows {
            for group in 0..GROUPS {
                let q = nearest((row[group] * inverse[group] + shift[group]).clamp(0.0, 15.0));
                sums.q[group] += q;
                sums.qq[group] += q * q;
                sums.xq[group] += row[group] * q;
            }
        }
        sums
    }
}

/// The groups, each scaled to the range from 0 to 15, so that the size and the sign of its numbers do not affect the fit. `sum`
/// and `squares` are the sums of the scaled numbers and of their squares.
struct Scaled {
    rows: Rows<GROUPS, LENGTH>,
    sum: Lanes,
    squares: Lanes,
    /// The position of the unscaled 0: from 0 to 15, or above 15 if all numbers are negative. A floor cannot be above it.
    zero: Lanes,
}

/// The best line so far for each group: number = step * q + floor.
struct Lines {
    step: Lanes,
    floor: Lanes,
    error: Lanes,
}

/// The best step and floor of each group.
fn fit_groups(rows: &Rows<GROUPS, LENGTH>) -> (Lanes, Lanes) {
    let (mut low, mut high) = ([0.0_f32; GROUPS], rows[0]);
    for row in rows {
        for group in 0..GROUPS {
            low[group] = if row[group] < low[group] { row[group] } else { low[group] };
            high[group] = if row[group] > high[group] { row[group] } else { high[group] };
        }
    }
    let unit: Lanes = lanes(|group| (high[group] - low[group]) / 15.0);
    let inverse = unit.map(safe_inverse);
    let zero = lanes(|group| -low[group] * inverse[group]);
    let mut scaled = Scaled { rows: *rows, sum: [0.0; GROUPS], squares: [0.0; GROUPS], zero };
    for row in &mut scaled.rows {
        for group in 0..GROUPS {
            row[group] = (row[group] - low[group]) * inverse[group];
            scaled.sum[group] += row[group];
            scaled.squares[group] += row[group] * row[group];
        }
    }
    let mut best = Lines { step: [1.0; GROUPS], floor: [0.0; GROUPS], error: [f32::MAX; GROUPS] };
    for offset in STEP_OFFSETS {
        best.consider(&scaled, [1.0 + offset / 15.0; GROUPS], [0.0; GROUPS]);
    }
    for _ in 0..REFINEMENTS {
        let inverse = best.step.map(safe_inverse);
        best.consider(&scaled, inverse, lanes(|group| -best.floor[group] * inverse[group]));
    }
    (
        lanes(|group| best.step[group] * unit[group]),
        lanes(|group| best.floor[group] * unit[group] + low[group]),
    )
}

/// Each trial divides the range of a group into 15 steps plus this number of steps.
const STEP_OFFSETS: [f32; 11] = [-1.5, -1.2, -0.9, -0.6, -0.3, 0.0, 0.3, 0.6, 0.9, 1.2, 1.5];
/// The number of improvements of the best line; a third one changes the error by less than 0.1 %.
const REFINEMENTS: usize = 2;

impl Lines {
    /// Fits the least-squares line to the integers of `inverse` and `shift`, and keeps it in the groups where it is better.
    #[inline(always)]
    fn consider(&mut self, scaled: &Scaled, inverse: Lanes, shift: Lanes) {
        let n = LENGTH as f32;
        let sums = Sums::of(&scaled.rows, inverse, shift);
        for group in 0..GROUPS {
            let (q, qq, xq) = (sums.q[group], sums.qq[group], sums.xq[group]);
            let (x, xx, zero) = (scaled.sum[group], scaled.squares[group], scaled.zero[group]);
            let determinant = n * qq - q * q;
            let step = if determinant > 0.0 { (n * xq - q * x) / determinant } else { 0.0 };
            let floor = (x - step * q) / n;
            // A floor above zero cannot be represented: then the line goes through zero.
            let step_through_zero = if qq > 0.0 { (xq - zero * q) / qq } else { 0.0 };
            let step_through_zero = if step_through_zero > 0.0 { step_through_zero } else { 0.0 };
            let (step, floor) = if floor > zero { (step_through_zero, zero) } else { (step, floor) };
            let error =
                xx - 2.0 * (step * xq + floor * x) + step * (step * qq + 2.0 * floor * q) + n * floor * floor;
            let better = error < self.error[group];
            self.error[group] = if better { error } else { self.error[group] };
            self.step[group] = if better { step } else { self.step[group] };
            self.floor[group] = if better { floor } else { self.floor[group] };
        }
    }
}

/// The offsets to try, from the ideal scale and from the best minimum.
const OFFSETS: [f32; 3] = [0.0, -1.0, 1.0];

/// The scales and minima of a block, and the squared error that they leave.
struct Quantized {
    d: f32,
    dmin: f32,
    scales: Lanes,
    minima: Lanes,
    error: f32,
}

impl Quantized {
    /// The best scales and minima for this `d` and `dmin`, among the neighbours of the ideal ones.
    fn near_ideal(rows: &Rows<GROUPS, LENGTH>, d: f32, dmin: f32, steps: Lanes, floors: Lanes) -> Self {
        let (per_d, per_dmin) = (safe_inverse(d), safe_inverse(dmin));
        let ideal_scales: Lanes = lanes(|group| nearest((steps[group] * per_d).clamp(0.0, 63.0)));
        let ideal_minima: Lanes = lanes(|group| nearest((-floors[group] * per_dmin).clamp(0.0, 63.0)));
        let (mut scales, mut minima) = (ideal_scales, ideal_minima);
        let mut error = errors(rows, d, dmin, scales, minima);
        for offset in OFFSETS {
            let scale: Lanes = lanes(|group| (ideal_scales[group] + offset).clamp(0.0, 63.0));
            // The best minimum (`centre`) for the integers `q` that this scale gives.
            let step: Lanes = lanes(|group| d * scale[group]);
            let inverse = step.map(safe_inverse);
            let minus_floor: Lanes = lanes(|group| dmin * ideal_minima[group]);
            let mut excess = [0.0; GROUPS];
            for row in rows {
                for group in 0..GROUPS {
                    let q = nearest(((row[group] + minus_floor[group]) * inverse[group]).clamp(0.0, 15.0));
                    excess[group] += step[group] * q - row[group];
                }
            }
            let centre: Lanes =
                lanes(|group| nearest((excess[group] / LENGTH as f32 * per_dmin).clamp(0.0, 63.0)));
            for offset in OFFSETS {
                let minimum: Lanes = lanes(|group| (centre[group] + offset).clamp(0.0, 63.0));
                let trial_error = errors(rows, d, dmin, scale, minimum);
                for group in 0..GROUPS {
                    let better = trial_error[group] < error[group];
                    error[group] = if better { trial_error[group] } else { error[group] };
                    scales[group] = if better { scale[group] } else { scales[group] };
                    minima[group] = if better { minimum[group] } else { minima[group] };
                }
            }
        }
        Self { d, dmin, scales, minima, error: error.iter().sum() }
    }

    /// The same scales and minima with the best-fitting `d` and `dmin`; `None` if these cannot be stored.
    fn refine(&self, rows: &Rows<GROUPS, LENGTH>) -> Option<Self> {
        let step: Lanes = lanes(|group| self.d * self.scales[group]);
        let minus_floor: Lanes = lanes(|group| self.dmin * self.minima[group]);
        let inverse = step.map(safe_inverse);
        let shift = lanes(|group| minus_floor[group] * inverse[group]);
        let sums = Sums::of(rows, inverse, shift);
        let mut x = [0.0; GROUPS];
        for row in rows {
            for (x, value) in x.iter_mut().zip(row) {
                *x += value;
            }
        }
        // x = d * a - dmin * b with a = scale * q and b = minimum, for all numbers: the normal equations for `d` and `dmin`.
        let (mut aa, mut ab, mut bb, mut ax, mut bx) = (0.0, 0.0, 0.0, 0.0, 0.0);
        for (group, x) in x.into_iter().enumerate() {
            let (scale, minimum) = (self.scales[group], self.minima[group]);
            aa += scale * scale * sums.qq[group];
            ab += scale * minimum * sums.q[group];
            bb += minimum * minimum * LENGTH as f32;
            ax += scale * sums.xq[group];
            bx += minimum * x;
        }
        let (d, dmin) = if bb > 0.0 {
            let determinant = aa * bb - ab * ab;
            ((ax * bb - ab * bx) / determinant, (ab * ax - aa * bx) / determinant)
        } else {
            (ax / aa, 0.0)
        };
        // Without a unique solution both are NaN or infinite, which this check or the last one refuses.
        if !(d >= 0.0 && dmin >= 0.0) {
            return None;
        }
        let (d, dmin) = (f16::from_f32(d).to_f32(), f16::from_f32(dmin).to_f32());
        let error = errors(rows, d, dmin, self.scales, self.minima).iter().sum();
        (d.is_finite() && dmin.is_finite()).then_some(Self { d, dmin, error, ..*self })
    }

    fn write(&self, rows: &Rows<GROUPS, LENGTH>, block: &mut [u8; 144]) {
        let step: Lanes = lanes(|group| self.d * self.scales[group]);
        let minus_floor: Lanes = lanes(|group| self.dmin * self.minima[group]);
        let inverse = step.map(safe_inverse);
        let mut quants = [[0_u8; GROUPS]; LENGTH];
        for (quants, row) in quants.iter_mut().zip(rows) {
            for group in 0..GROUPS {
                quants[group] =
                    nearest(((row[group] + minus_floor[group]) * inverse[group]).clamp(0.0, 15.0)) as u8;
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

/// The squared error of each group, with its numbers rounded to the nearest representable numbers.
#[inline(always)]
fn errors(rows: &Rows<GROUPS, LENGTH>, d: f32, dmin: f32, scales: Lanes, minima: Lanes) -> Lanes {
    let step: Lanes = lanes(|group| d * scales[group]);
    let minus_floor: Lanes = lanes(|group| dmin * minima[group]);
    let inverse = step.map(safe_inverse);
    let mut error = [0.0; GROUPS];
    for row in rows {
        for group in 0..GROUPS {
            let above = row[group] + minus_floor[group];
            let difference = step[group] * nearest((above * inverse[group]).clamp(0.0, 15.0)) - above;
            error[group] += difference * difference;
        }
    }
    error
}
