//! Sums and functions of many numbers at once, in plain Rust that the compiler vectorizes.
//!
//! All levels (instruction sets) share this code. The compiler neither reorders nor fuses operations on floats, so the bits are
//! the same in every build and at every level; a test checks this. The same is true for norms, rotations, activation functions
//! and the portable level of every kernel.

const LANES: usize = 16;

pub fn sum(x: &[f32]) -> f32 {
    sum_of(x, |x| x)
}

pub fn sum_of_squares(x: &[f32]) -> f32 {
    sum_of(x, |x| x * x)
}

/// Whether all numbers are finite: `x * 0.0` is zero for a finite `x`, and NaN otherwise.
pub fn all_finite(x: &[f32]) -> bool {
    sum_of(x, |x| x * 0.0) == 0.0
}

/// Sums in sixteen lanes, as many as an AVX-512 vector has. The rounding errors are smaller than those of a single sum.
#[inline(always)]
fn sum_of(x: &[f32], map: impl Fn(f32) -> f32) -> f32 {
    let (chunks, rest) = x.as_chunks::<LANES>();
    let mut sums = [0.0; LANES];
    for chunk in chunks {
        for (sum, x) in sums.iter_mut().zip(chunk) {
            *sum += map(*x);
        }
    }
    sums.iter().sum::<f32>() + rest.iter().map(|x| map(*x)).sum::<f32>()
}

/// `e^x` with a relative error below 3e-7, without a branch. Results are clamped to normal f32 numbers; NaN stays NaN.
#[inline(always)]
#[expect(clippy::excessive_precision, reason = "the two parts of ln 2 are given as they are in f32")]
pub fn exp(x: f32) -> f32 {
    let is_nan = x.is_nan();
    let x = if x > 88.37 { 88.37 } else { x };
    let x = if x < -87.33 { -87.33 } else { x };
    // Adding 1.5 * 2^23 leaves the nearest integer to `x / ln 2` in the lowest bits.
    let integer_bits = x * std::f32::consts::LOG2_E + 12_582_912.0;
    let integer = integer_bits - 12_582_912.0;
    let fraction = x - integer * 0.693_359_375 - integer * -2.121_944_4e-4;
    // `e^fraction`, by the polynomial of Cephes' `expf`.
    let mut power = 1.987_569_1e-4;
    for coefficient in [1.398_199_95e-3, 8.333_451_9e-3, 4.166_579_6e-2, 1.666_666_5e-1, 5.000_000_1e-1] {
        power = power * fraction + coefficient;
    }
    power = power * fraction * fraction + fraction + 1.0;
    let exponential = f32::from_bits(power.to_bits().wrapping_add(integer_bits.to_bits() << 23));
    // For a NaN the bits computed above are arbitrary and could form a number.
    if is_nan { f32::NAN } else { exponential }
}

/// `1 / (1 + e^-x)`.
#[inline(always)]
pub fn logistic(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_has_a_relative_error_below_3e_7() {
        for step in -87_300..88_300 {
            let x = step as f32 / 1000.0;
            let exact = f64::from(x).exp();
            assert!((f64::from(exp(x)) / exact - 1.0).abs() < 3e-7, "{x}: {} and {exact}", exp(x));
        }
        assert!(exp(f32::NEG_INFINITY) < 2e-38 && exp(f32::INFINITY) > 1e38 && exp(0.0) == 1.0);
        for bits in [0x7fc0_0000, 0x7fc0_0001, 0xffff_ffff, 0x7f80_0001, 0x7fd5_5555] {
            assert!(exp(f32::from_bits(bits)).is_nan(), "{bits:x}");
        }
    }

    /// The digest depends on every bit of every result.
    #[test]
    fn exp_logistic_and_sums_have_the_same_bits_in_every_build() {
        let x: Vec<f32> = (0..10_000).map(|step| (step as f32).sqrt() - 50.0).collect();
        let digest = |f: &dyn Fn(f32) -> f32| {
            x.iter().fold(0_u32, |bits, x| bits.rotate_left(5).wrapping_mul(0x9e37_79b1) ^ f(*x).to_bits())
        };
        assert_eq!((digest(&exp), digest(&logistic)), (3_221_572_075, 1_817_889_143));
        assert_eq!((sum(&x).to_bits(), sum_of_squares(&x).to_bits()), (1_210_234_398, 1_258_180_693));
    }

    #[test]
    fn a_nan_or_an_infinity_is_found_at_any_position() {
        let mut x = vec![f32::MAX; 50];
        assert!(all_finite(&x) && all_finite(&[]));
        for at in 0..x.len() {
            for special in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                x[at] = special;
                assert!(!all_finite(&x), "{special} at {at}");
            }
            x[at] = -0.0;
        }
    }

    #[test]
    fn sums_in_lanes_equal_sequential_sums() {
        let x: Vec<f32> = (0..77).map(|i| i as f32).collect();
        assert_eq!((sum(&x), sum_of_squares(&x[..5])), (77.0 * 38.0, 30.0));
    }
}
