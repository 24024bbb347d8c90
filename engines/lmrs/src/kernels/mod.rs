//! Arithmetic on slices, independent of models and threads. Products have an implementation for each level (instruction set).

pub mod attention;
pub mod lanes;
pub mod level;
pub mod outputs;
pub mod panels;
pub mod rows;

pub use level::{Instructions, Level};
pub use outputs::Outputs;

/// Pseudo-random numbers for tests, always the same for a seed.
#[cfg(test)]
pub(crate) mod test_rng {
    pub struct TestRng(u64);

    impl TestRng {
        pub fn new(seed: u64) -> Self {
            Self(seed.wrapping_mul(2).wrapping_add(0x9e37_79b9_7f4a_7c15))
        }

        pub fn bits(&mut self) -> u32 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 32) as u32
        }

        pub fn below(&mut self, limit: usize) -> usize {
            self.bits() as usize % limit
        }

        /// A number from -1 to 1.
        pub fn number(&mut self) -> f32 {
            self.bits() as f32 / (u32::MAX / 2) as f32 - 1.0
        }

        pub fn numbers(&mut self, count: usize) -> Vec<f32> {
            (0..count).map(|_| self.number()).collect()
        }
    }
}
