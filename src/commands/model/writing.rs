//! Arguments, progress and results of the subcommands that write a model.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use model_files::{Dtype, Format, Written, size};

use crate::cli::exit_code::INTERRUPTED;
use crate::commands::interrupts::Interrupts;
use crate::commands::output;
use crate::shell::Usage;

pub fn format(name: &str) -> Result<Format> {
    let unknown = || Usage(format!("no format `{name}`\nhint: use `safetensors` or `gguf`"));
    Ok(Format::named(name).ok_or_else(unknown)?)
}

pub fn dtype(name: &str) -> Result<Dtype> {
    let unknown = || Usage(format!("no dtype `{name}`\nhint: use {WRITTEN}"));
    Ok(Dtype::named(name).ok_or_else(unknown)?)
}

const WRITTEN: &str = "`f32`, `bf16` or `f16`; in gguf also `q8_0`, `q4_0`, `q4_k` or `q6_k`";

/// Refuses a dtype that this format cannot have. `option` is the format's option on the command line.
pub fn check_writable(format: Format, dtype: Dtype, option: &str) -> Result<()> {
    let name = dtype.as_str().to_ascii_lowercase();
    let elsewhere = model_files::check_writable(Format::Gguf, dtype).is_ok();
    let hint = if elsewhere { format!("{option} gguf --dtype {name}") } else { format!("use {WRITTEN}") };
    let refused = |error: anyhow::Error| Usage(format!("{error:#}\nhint: {hint}"));
    Ok(model_files::check_writable(format, dtype).map_err(refused)?)
}

/// The path on stdout, for a pipe; the progress on stderr.
#[expect(clippy::print_stderr, reason = "a summary for the user; only the path goes to stdout")]
pub fn written(bar: Bar, made: Result<Written>) -> Result<u8> {
    let interrupted = bar.was_interrupted();
    let took = bar.end();
    let made = match made {
        Err(error) if interrupted => {
            output::complain(&error);
            return Ok(INTERRUPTED);
        }
        made => made?,
    };
    made.notes.iter().for_each(|note| eprintln!("note: {note}"));
    eprintln!("{} in {:.1} s", size(made.bytes), took.as_secs_f64());
    output::succeed(format!("{}\n", made.path.display()))
}

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
