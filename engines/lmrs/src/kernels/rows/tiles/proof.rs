//! Whether a processor's tiles do what they should. A processor says that it has them, and the system that they may be used;
//! but a wrong number is worse than a slower one, and what stands between (a hypervisor, an emulator) is not always right.
#![expect(unsafe_code, reason = "a level is tried before it is believed")]

use super::super::packed::{Line, TOKENS};
use super::tile::{Part, Tile};

/// Two tiles one after the other, so that what the first left is added to.
const STEPS: usize = 2 * TOKENS;

/// Whether one product of small whole numbers, which bf16 and f32 hold exactly, comes out right, with one group of tokens and
/// with as many as `T` has.
///
/// # Safety
///
/// The machine has the instructions of `T`, and this process may use them.
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
        // SAFETY: the caller's promise; as many weights, lines and sums lie there as `part` says.
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

/// Two whole numbers from -3 to 3, as bf16.
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

    /// As `Pairs`, and one sum is off by one.
    struct Wrong;

    impl Tile for Wrong {
        const OUTPUTS: usize = Pairs::OUTPUTS;
        const GROUPS: usize = Pairs::GROUPS;
        const STEPS: usize = Pairs::STEPS;

        unsafe fn add(part: &Part) {
            // SAFETY: the caller's promise.
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
        // SAFETY: the machine has what `Pairs` needs.
        unsafe { assert!(works::<Pairs>() && !works::<Wrong>()) };
    }
}
