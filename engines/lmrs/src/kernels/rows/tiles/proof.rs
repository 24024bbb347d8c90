//! A check that a processor's tiles compute correctly. The processor and the system report tiles, but a hypervisor or an
//! emulator in between can be wrong. A wrong result is worse than a slow one.
#![expect(unsafe_code, reason = "a level is tried before it is believed")]

use super::super::packed::{Line, TOKENS};
use super::tile::{Part, Tile};

/// Two consecutive tiles, so that the second adds to the sums of the first.
const STEPS: usize = 2 * TOKENS;

/// Whether a product of small integers, exact in bf16 and f32, is right with one group of tokens and with all groups of `T`.
///
/// # Safety
///
/// The machine has the instructions of `T`, and this process is allowed to use them.
pub unsafe fn works<T: Tile>() -> bool {
    let weights: Vec<u32> = (0..T::OUTPUTS * STEPS).map(|at| pair(at * 7)).collect();
    let lines: Vec<Line> = (0..T::GROUPS * STEPS)
        .map(|line| Line(std::array::from_fn(|token| pair(line * 5 + token * 3))))
        .collect();
    (1..=T::GROUPS).all(|groups| {
        let mut sums = vec![1.0_f32; T::OUTPUTS * T::GROUPS * TOKENS];
        let part = Part {
            weights: weights.as_ptr(),
            weights_stride: STEPS,
            lines: lines.as_ptr(),
            lines_stride: STEPS,
            groups,
            steps: STEPS,
            sums: sums.as_mut_ptr(),
            sums_stride: T::GROUPS * TOKENS,
        };
        // SAFETY: the caller guarantees this; the weights, lines and sums have the sizes of `part`.
        unsafe {
            T::begin();
            T::add(&part);
            T::end();
        }
        sums.iter().enumerate().all(|(at, sum)| {
            let (output, group, token) = (at / (T::GROUPS * TOKENS), at / TOKENS % T::GROUPS, at % TOKENS);
            let step = |step: usize| {
                let (weight, number) = (weights[output * STEPS + step], lines[group * STEPS + step].0[token]);
                halves(weight).iter().zip(halves(number)).map(|(a, b)| a * b).sum::<f32>()
            };
            let products = if group < groups { (0..STEPS).map(step).sum::<f32>() } else { 0.0 };
            *sum == 1.0 + products
        })
    })
}

/// Two integers from -3 to 3, as bf16.
fn pair(seed: usize) -> u32 {
    let bits = |seed: usize| (((seed * seed + seed) % 7) as f32 - 3.0).to_bits() >> 16;
    bits(seed) | bits(seed + 11) << 16
}

fn halves(pair: u32) -> [f32; 2] {
    [f32::from_bits(pair << 16), f32::from_bits(pair & 0xffff_0000)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::rows::tiles::pairs::Pairs;

    /// `Pairs` with one wrong sum.
    struct Wrong;

    impl Tile for Wrong {
        const OUTPUTS: usize = Pairs::OUTPUTS;
        const GROUPS: usize = Pairs::GROUPS;
        const STEPS: usize = Pairs::STEPS;

        unsafe fn add(part: &Part) {
            // SAFETY: the caller guarantees this.
            unsafe {
                Pairs::add(part);
                *part.sums.add(part.sums_stride) += 1.0;
            }
        }
    }

    #[test]
    fn tiles_that_are_right_are_believed_and_those_that_are_not_are_not() {
        if !is_x86_feature_detected!("avx512bf16") || !is_x86_feature_detected!("avx512vl") {
            return;
        }
        // SAFETY: the machine has the features of `Pairs`.
        unsafe { assert!(works::<Pairs>() && !works::<Wrong>()) };
    }
}
