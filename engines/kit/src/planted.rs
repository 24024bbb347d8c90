//! A deliberate slowdown, the load option `planted_delay_us`: it tests the detection of slowdowns on any real engine. The
//! kit removes it from the options, so engines do not see it.

use std::borrow::Cow;
use std::time::{Duration, Instant};

use protocol::{Failed, Load};

use crate::Options;

const OPTION: &str = "planted_delay_us";
/// The part of a delay that is spun: a sleep ends late by about this much, more than the delays planted in a fast engine.
const SPUN: Duration = Duration::from_micros(200);

/// The delay before each token of a sequence but the first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Planted(Duration);

impl Planted {
    /// The planted delay, and the load without the option.
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
