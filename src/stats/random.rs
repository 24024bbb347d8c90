//! A seeded random generator with the same numbers on every machine.

/// SplitMix64: Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    pub fn seeded(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// A whole number below `count`, which must not be zero. It is the high half of a product, with a bias below count / 2^64.
    pub fn below(&mut self, count: usize) -> usize {
        ((u128::from(self.next()) * count as u128) >> 64) as usize
    }

    /// Shuffles the items, every order equally likely: Durstenfeld, "Algorithm 235: Random Permutation", CACM 7 (1964).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

impl Random {
    /// A number above 0 and up to 1, in steps of 2^-53.
    pub fn unit(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 * (-53f64).exp2()
    }

    /// A number with a gamma distribution of this shape and the scale 1: Marsaglia and Tsang, "A Simple Method for Generating Gamma
    /// Variables", ACM TOMS 26 (2000), with its step for shapes below 1.
    pub fn gamma(&mut self, shape: f64) -> f64 {
        if shape < 1.0 {
            return self.gamma(shape + 1.0) * self.unit().powf(1.0 / shape);
        }
        let d = shape - 1.0 / 3.0;
        let c = 1.0 / (9.0 * d).sqrt();
        loop {
            let x = self.normal();
            let v = (1.0 + c * x).powi(3);
            if v > 0.0 && self.unit().ln() < 0.5 * x * x + d - d * v + d * v.ln() {
                return d * v;
            }
        }
    }

    /// `true` with this probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        self.unit() <= probability
    }

    /// A standard normal number: Box and Muller, "A Note on the Generation of Random Normal Deviates", Annals of Mathematical
    /// Statistics 29 (1958).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * self.unit().ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }

    /// The sum of the squares of `df` standard normal variables.
    pub fn chi_square(&mut self, df: usize) -> f64 {
        (0..df).map(|_| self.normal().powi(2)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Tests of implementations in other languages expect this sequence of seed 1234567.
    #[test]
    fn the_random_numbers_equal_the_published_sequence() {
        let mut random = Random::seeded(1_234_567);
        let drawn = [(); 3].map(|()| random.next());
        assert_eq!(drawn, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    #[test]
    fn every_index_is_drawn_and_none_beyond_the_last() {
        let mut random = Random::seeded(1);
        let mut drawn = [0; 7];
        (0..7000).for_each(|_| drawn[random.below(7)] += 1);
        assert!(drawn.iter().all(|&count| (850..1150).contains(&count)), "{drawn:?}");
    }

    #[test]
    fn normal_numbers_have_a_mean_of_0_and_a_deviation_of_1() {
        let mut random = Random::seeded(2);
        let drawn: Vec<f64> = (0..20_000).map(|_| random.normal()).collect();
        let mean = drawn.iter().sum::<f64>() / 20_000.0;
        let mean_square = drawn.iter().map(|it| it * it).sum::<f64>() / 20_000.0;
        assert!(mean.abs() < 0.03 && (mean_square - 1.0).abs() < 0.05, "{mean} {mean_square}");
    }
}
