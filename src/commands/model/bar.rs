//! The progress of writing a model, on stderr.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::commands::interrupts::Interrupts;

/// A bar of bytes. Ctrl-C ends the work, so that no half-made file is left.
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

    /// The callback for the progress of the work.
    pub fn watch(&self) -> impl Fn(u64, u64) -> Result<()> + Sync + '_ {
        |done, total| {
            if *self.interrupts.heard.borrow() > 0 {
                bail!("interrupted: the incomplete files were removed");
            }
            self.bar.set_length(total);
            self.bar.set_position(done);
            Ok(())
        }
    }

    /// Ends the bar, and returns the time of the work.
    pub fn end(self) -> Duration {
        self.bar.finish_and_clear();
        self.begun.elapsed()
    }

    pub fn was_interrupted(&self) -> bool {
        *self.interrupts.heard.borrow() > 0
    }
}
