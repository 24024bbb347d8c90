//! The processes and displays around a set-up.

use anyhow::Result;

use crate::commands::interrupts::Interrupts;
use crate::commands::progress::{Display, Progress};
use crate::engines::registry::Registry;
use crate::engines::setup::{SetUpContext, SetUpEvent};
use crate::record::new_id;
use crate::run::Event;
use crate::run::process::Keeper;

/// The message after an interrupt. Cargo continues an interrupted build, and an incomplete environment is made again.
const INTERRUPTED: &str = "interrupted during set-up: the same command continues";

/// Sets engines up with a display of the progress. A keeper ends every process that an interrupt leaves behind. `ends_with_error`: a
/// failure is the error of the command too, so the progress leaves it out.
pub fn with_set_up<T>(
    registry: &Registry,
    ends_with_error: bool,
    work: impl FnOnce(&mut SetUpContext) -> T,
) -> Result<T> {
    let keeper = Keeper::start(&new_id())?;
    let mut progress = Progress::new(Display::of_stderr());
    let mut listener = |event: SetUpEvent| {
        let is_failure = matches!(event, SetUpEvent::Finished { failed: Some(_), .. });
        if !(ends_with_error && is_failure) {
            progress.event(Event::SetUp(event));
        }
    };
    let _interrupts = Interrupts::listen(INTERRUPTED)?;
    Ok(work(&mut SetUpContext::new(registry, keeper.mark(), &mut listener)))
}
