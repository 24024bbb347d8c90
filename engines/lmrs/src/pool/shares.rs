//! Distribution of the numbers below a limit, each one once. Every thread has a share of neighbours, so that it reads memory
//! sequentially as long as possible. Then it takes the rest of other shares.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

pub struct Shares(Vec<Share>);

/// A share on cache lines of its own, so that threads contend only if one helps another.
#[repr(align(128))]
struct Share {
    next: AtomicUsize,
    end: usize,
}

/// The divisor of the remaining share for each take: large ranges first, and small ones at the end, while others wait.
const PART: usize = 2;

impl Shares {
    pub fn new(limit: usize, threads: usize) -> Self {
        let bound = |thread: usize| thread * limit / threads;
        let share = |thread| Share { next: bound(thread).into(), end: bound(thread + 1) };
        Self((0..threads).map(share).collect())
    }

    /// Takes some neighbours, at most `most`; `None` when all are taken.
    pub fn take(&self, thread: usize, most: usize) -> Option<Range<usize>> {
        self.0[thread..].iter().chain(&self.0[..thread]).find_map(|share| share.take(most))
    }
}

impl Share {
    fn take(&self, most: usize) -> Option<Range<usize>> {
        let count = |next: usize| ((self.end - next) / PART).clamp(1, most.max(1));
        let further = |next| (next < self.end).then(|| next + count(next));
        // The pool's barrier orders all other memory; here only the counter matters.
        let taken = self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, further);
        taken.ok().map(|first| first..first + count(first))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_given_out_once_whichever_threads_ask() {
        for (limit, threads, most) in
            [(0, 3, 1), (1, 2, 9), (7, 3, 2), (100, 8, 3), (5, 8, 1), (1000, 2, 1000)]
        {
            let shares = Shares::new(limit, threads);
            let taken = (0..).map_while(|ask| shares.take(ask * 5 % 3 % threads, most));
            let mut seen: Vec<usize> =
                taken.inspect(|range| assert!((1..=most).contains(&range.len()))).flatten().collect();
            seen.sort_unstable();
            assert_eq!(seen, (0..limit).collect::<Vec<_>>());
        }
    }

    #[test]
    fn what_is_taken_at_a_time_gets_smaller_towards_the_end() {
        let shares = Shares::new(100, 1);
        let sizes: Vec<usize> = std::iter::from_fn(|| shares.take(0, 20)).map(|range| range.len()).collect();
        assert!(sizes.is_sorted_by(|one, next| one >= next), "{sizes:?}");
        assert_eq!((sizes[0], sizes.last()), (20, Some(&1)));
    }
}
