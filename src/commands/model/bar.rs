//! How far a model has been written, on stderr, for a person who waits.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::commands::interrupts::Interrupts;

/// A bar of bytes. Ctrl-C ends the work, so that nothing half made is left.
pub struct Bar {
    bar: ProgressBar,
    interrupts: Interrupts,
    begun: Instant,
}

impl Bar {
    pub fn begin(what: &str) -> Result<Self> {
        let interrupts = Interrupts::listen("interrupted")?;
        interrupts.keep();
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(10));
        let style =
            "{msg} {bar:24} {decimal_bytes} of {decimal_total_bytes}, {decimal_bytes_per_sec}, {eta} left";
        bar.set_style(ProgressStyle::with_template(style)?);
        bar.set_message(what.to_string());
        Ok(Self { bar, interrupts, begun: Instant::now() })
    }

    /// To be told how far the work is.
    pub fn watch(&self) -> impl Fn(u64, u64) -> Result<()> + Sync + '_ {
        |done, total| {
            if *self.interrupts.heard.borrow() > 0 {
                bail!("interrupted: what was written of it was removed");
            }
            self.bar.set_length(total);
            self.bar.set_position(done);
            Ok(())
        }
    }

    /// How long it took.
    pub fn end(self) -> Duration {
        self.bar.finish_and_clear();
        self.begun.elapsed()
    }

    pub fn was_interrupted(&self) -> bool {
        *self.interrupts.heard.borrow() > 0
    }
}
