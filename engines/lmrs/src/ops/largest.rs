//! Finds the largest of many numbers, which come in several calls.

use std::ops::Range;

/// Numbers that are compared at once.
const SCANNED_NUMBERS: usize = 64;

/// The largest number so far, and the lowest output (the index of a matrix row) with this number.
#[derive(Debug, Clone, Copy)]
pub struct Largest {
    number: f32,
    output: u32,
    has_nan: bool,
}

impl Default for Largest {
    fn default() -> Self {
        Self { number: f32::NEG_INFINITY, output: 0, has_nan: false }
    }
}

impl Largest {
    pub fn scan(&mut self, numbers: &[f32], outputs: Range<usize>) {
        // A larger number than the largest so far is rare, so this check runs first, on many numbers at a time.
        let is_larger_or_nan = |number: &f32| *number > self.number || number.is_nan();
        if !numbers
            .chunks(SCANNED_NUMBERS)
            .any(|numbers| numbers.iter().fold(false, |any, number| any | is_larger_or_nan(number)))
        {
            return;
        }
        for (number, output) in numbers.iter().zip(outputs) {
            self.has_nan |= number.is_nan();
            if *number > self.number {
                (self.number, self.output) = (*number, output as u32);
            }
        }
    }

    pub fn merge(&mut self, other: Self) {
        let has_nan = self.has_nan | other.has_nan;
        let is_lower_of_equals = other.number == self.number && other.output < self.output;
        if other.number > self.number || is_lower_of_equals && other.number > f32::NEG_INFINITY {
            *self = other;
        }
        self.has_nan = has_nan;
    }

    pub fn output(self) -> Option<u32> {
        (!self.has_nan && self.number.is_finite()).then_some(self.output)
    }
}

/// The index of the largest number; among equals, the lowest index. `None` if a number is NaN, or if the largest is infinite.
pub fn largest(numbers: &[f32]) -> Option<u32> {
    let mut largest = Largest::default();
    largest.scan(numbers, 0..numbers.len());
    largest.output()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_output_wins_among_equal_numbers() {
        let mut largest = Largest::default();
        largest.scan(&[0.5, 1.0, 1.0], 10..13);
        assert_eq!(largest.output(), Some(11));
        let lower = Largest { number: 1.0, output: 4, has_nan: false };
        largest.merge(lower);
        largest.merge(Largest { number: 1.0, output: 5, has_nan: false });
        largest.merge(Largest::default());
        assert_eq!(largest.output(), Some(4));
    }

    #[test]
    fn a_nan_or_an_infinite_largest_number_gives_no_output() {
        for numbers in
            [[f32::NAN; 3], [1.0, f32::NAN, 0.0], [f32::INFINITY, 1.0, 0.0], [f32::NEG_INFINITY; 3]]
        {
            assert_eq!(largest(&numbers), None, "{numbers:?}");
            let mut merged = Largest::default();
            merged.scan(&numbers, 0..3);
            merged.merge(Largest { number: 0.5, output: 7, has_nan: false });
            assert!(merged.output().is_none() || numbers == [f32::NEG_INFINITY; 3]);
        }
        assert_eq!(largest(&[f32::NEG_INFINITY, -1.0]), Some(1));
    }
}
