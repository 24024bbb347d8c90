//! Ctrl-C and SIGTERM. They are noticed during the whole run, also while other code blocks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::cli::exit_code::INTERRUPTED;

/// Counts interrupts.
pub struct Interrupts {
    pub heard: watch::Receiver<u32>,
    nothing_to_keep: Arc<AtomicBool>,
}

impl Interrupts {
    /// Listens on a thread of its own. Until `keep`, an interrupt ends the program with this message.
    pub fn listen(last_words: &'static str) -> Result<Self> {
        let (count, heard) = watch::channel(0);
        let nothing_to_keep = Arc::new(AtomicBool::new(true));
        let (listening, ready) = std::sync::mpsc::channel();
        let nothing = Arc::clone(&nothing_to_keep);
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            match runtime {
                Ok(runtime) => runtime.block_on(listen(count, &nothing, &listening, last_words)),
                // Without a waiting receiver the program is already ending.
                Err(error) => drop(listening.send(Err(error))),
            }
        });
        ready
            .recv()
            .context("the thread that listens for Ctrl-C ended")?
            .context("cannot listen for Ctrl-C")?;
        Ok(Self { heard, nothing_to_keep })
    }

    /// Ends the early phase: from now on there is a record, and the receiver of an interrupt must end in its own time.
    pub fn keep(&self) {
        self.nothing_to_keep.store(false, Ordering::SeqCst);
    }
}

async fn listen(
    count: watch::Sender<u32>,
    nothing_to_keep: &AtomicBool,
    listening: &std::sync::mpsc::Sender<std::io::Result<()>>,
    last_words: &str,
) {
    let signals =
        signal(SignalKind::interrupt()).and_then(|first| Ok((first, signal(SignalKind::terminate())?)));
    let (mut interrupt, mut terminate) = match signals {
        Ok(signals) => signals,
        Err(error) => return drop(listening.send(Err(error))),
    };
    // The other side waits for this message.
    drop(listening.send(Ok(())));
    loop {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        if nothing_to_keep.load(Ordering::SeqCst) {
            leave(last_words);
        }
        count.send_modify(|heard| *heard += 1);
    }
}

#[expect(clippy::print_stderr, reason = "the last message before the exit")]
#[expect(
    clippy::disallowed_methods,
    reason = "the work under way blocks in a read, and its caller made sure that nothing is left running"
)]
fn leave(last_words: &str) -> ! {
    eprintln!("\n{last_words}");
    std::process::exit(INTERRUPTED.into())
}
