//! The cores that an engine kept busy while it answered: for a column of `--resources` and for the claim about threads.

use crate::record::Sample;

/// The mean number of busy cores, over all requests with a known CPU time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CoresBusy {
    pub requests: usize,
    /// CPU time of the process tree, divided by the time of the requests.
    pub cores: f64,
    /// The mean number of threads that were ready but waited for a core; zero where the kernel does not count this.
    pub waited: f64,
    pub elapsed_ns: f64,
}

impl CoresBusy {
    /// `None` if these requests took no time, or there are none.
    pub fn of<'a>(samples: impl Iterator<Item = &'a Sample>) -> Option<Self> {
        let (mut requests, mut cpu, mut waited, mut elapsed) = (0, 0u128, 0u128, 0u128);
        for sample in samples {
            let Some(cpu_ns) = sample.cpu_ns else { continue };
            requests += 1;
            cpu += u128::from(cpu_ns);
            waited += u128::from(sample.waited_ns.unwrap_or(0));
            elapsed += u128::from(sample.elapsed_ns());
        }
        let elapsed_ns = elapsed as f64;
        let of_elapsed = |ns: u128| ns as f64 / elapsed_ns;
        (elapsed > 0).then(|| Self {
            requests,
            cores: of_elapsed(cpu),
            waited: of_elapsed(waited),
            elapsed_ns,
        })
    }
}
