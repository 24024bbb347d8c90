//! Compares a summary of a sample with numpy.

use crate::{Summary, golden, median};

#[test]
fn a_summary_has_the_figures_of_numpy() {
    let golden = golden::summaries();
    assert!(golden.len() > 4);
    for case in golden {
        let found = Summary::of(std::slice::from_ref(&case.values)).unwrap();
        golden::close(found.mean, case.mean, 1e-13, "mean");
        assert_eq!(found.std.is_some(), case.std.is_some());
        golden::close(found.std.unwrap_or(1.0), case.std.unwrap_or(1.0), 1e-12, "deviation");
        assert_eq!((found.min, found.max), (case.min, case.max));
        golden::close(median(&case.values).unwrap(), case.median, 1e-14, "median");
        for (found, expected) in
            [(found.p50, case.p50), (found.p90, case.p90), (found.p95, case.p95), (found.p99, case.p99)]
        {
            golden::close(found, expected, 1e-13, "percentile");
        }
    }
}
