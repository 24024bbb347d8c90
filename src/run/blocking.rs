//! Moves blocking work to another thread: reading files on a slow disk, calling the driver of a GPU, or reading much memory. On
//! the thread of the run, this work would delay the handling of interrupts.

use anyhow::{Context, Result};

/// Does the work on a separate thread. If the caller stops waiting, the work still runs to its end.
pub async fn off_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.context("a thread of this program ended in a panic")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_futures_run_during_blocking_work() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        // `recv` ends only when the test drops the sender, because nothing is sent.
        let (sender, receiver) = std::sync::mpsc::channel::<()>();
        let other_ran = runtime.block_on(async {
            tokio::select! {
                _ = off_thread(move || receiver.recv()) => false,
                () = tokio::task::yield_now() => true,
            }
        });
        assert!(other_ran);
        drop(sender);
    }
}
