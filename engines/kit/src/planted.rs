//! A slowdown that is put there on purpose, so that what detects slowdowns can be tried on any real engine: the load option
//! `planted_delay_us`. The kit takes it out of the options, so no engine knows of it.

use std::borrow::Cow;
use std::time::{Duration, Instant};

use protocol::{Failed, Load};

use crate::Options;

const OPTION: &str = "planted_delay_us";
/// A sleep wakes late by about this much, which is more than what is planted in a fast engine.
const SPUN: Duration = Duration::from_micros(200);

/// Time that passes before each token of a sequence but the first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Planted(Duration);

impl Planted {
    /// What the load plants, and the load without it.
    pub fn take(load: &Load) -> Result<(Self, Cow<'_, Load>), Failed> {
        let Some(us) = Options::new(&load.options).u64(OPTION)? else {
            return Ok((Self::default(), Cow::Borrowed(load)));
        };
        let mut load = load.clone();
        load.options.remove(OPTION);
        Ok((Self(Duration::from_micros(us)), Cow::Owned(load)))
    }

    pub fn wait(self) {
        if self.0.is_zero() {
            return;
        }
        let began = Instant::now();
        std::thread::sleep(self.0.saturating_sub(SPUN));
        while began.elapsed() < self.0 {
            std::hint::spin_loop();
        }
    }
}
