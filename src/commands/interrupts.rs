//! Ctrl-C and SIGTERM. They are noticed during the whole run, also while the main thread waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use anyhow::{Context, Result};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::cli::exit_code::INTERRUPTED;

/// The number of the newest listener. Only that one may end the program.
static LISTENERS: AtomicU64 = AtomicU64::new(0);

pub struct Interrupts {
    pub count: watch::Receiver<u32>,
    /// Until there is something to save, an interrupt ends the program at once.
    ends_at_once: Arc<AtomicBool>,
}

impl Interrupts {
    /// Listens on a thread of its own. Until `count_instead_of_exiting`, an interrupt ends the program with this message.
    pub fn listen(message: &'static str) -> Result<Self> {
        let (sender, count) = watch::channel(0);
        let ends_at_once = Arc::new(AtomicBool::new(true));
        let (started_sender, started) = std::sync::mpsc::channel();
        let flag = Arc::clone(&ends_at_once);
        let number = LISTENERS.load(Ordering::SeqCst) + 1;
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            match runtime {
                Ok(runtime) => runtime.block_on(listen(sender, number, &flag, &started_sender, message)),
                // If no receiver waits any more, the program is already ending.
                Err(error) => drop(started_sender.send(Err(error))),
            }
        });
        let result = started.recv().context("the thread that listens for Ctrl-C ended")?;
        result.context("cannot listen for Ctrl-C")?;
        LISTENERS.store(number, Ordering::SeqCst);
        Ok(Self { count, ends_at_once })
    }

    pub fn is_interrupted(&self) -> bool {
        *self.count.borrow() > 0
    }

    /// From now on interrupts are only counted, because there are results to save. The code that reads `count` ends the program.
    pub fn count_instead_of_exiting(&self) {
        self.ends_at_once.store(false, Ordering::SeqCst);
    }
}

async fn listen(
    count: watch::Sender<u32>,
    number: u64,
    ends_at_once: &AtomicBool,
    started: &std::sync::mpsc::Sender<std::io::Result<()>>,
    message: &str,
) {
    let signals =
        signal(SignalKind::interrupt()).and_then(|first| Ok((first, signal(SignalKind::terminate())?)));
    let (mut interrupt, mut terminate) = match signals {
        Ok(signals) => signals,
        Err(error) => return drop(started.send(Err(error))),
    };
    // `Interrupts::listen` waits for this message.
    drop(started.send(Ok(())));
    loop {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        if LISTENERS.load(Ordering::SeqCst) == number && ends_at_once.load(Ordering::SeqCst) {
            exit(message);
        }
        count.send_modify(|count| *count += 1);
    }
}

#[expect(clippy::print_stderr, reason = "the last message before the exit")]
#[expect(
    clippy::disallowed_methods,
    reason = "the main thread may block in a read; there is nothing to save, and a keeper ends any engine"
)]
fn exit(message: &str) -> ! {
    eprintln!("\n{message}");
    std::process::exit(INTERRUPTED.into())
}
