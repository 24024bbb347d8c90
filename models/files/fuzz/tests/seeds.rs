//! Reads each seed complete, truncated, and with one byte changed. A complete seed must be accepted. The properties in `lib.rs`
//! must hold for every input.

use model_files_fuzz::{TARGETS, remove_scratch_files, seeds};

/// Deterministic and quick; scripts/fuzz continues from here with libFuzzer.
#[test]
fn complete_truncated_and_changed_seeds_keep_the_properties() {
    for (name, target) in TARGETS {
        for (number, seed) in seeds(name).unwrap().into_iter().enumerate() {
            assert!(target(&seed), "`{name}` refuses its seed {number}");
            let step = seed.len().div_ceil(60);
            for at in (0..seed.len()).step_by(step) {
                target(&seed[..at]);
                let mut changed = seed.clone();
                for other in [0xff, seed[at] ^ 1] {
                    changed[at] = other;
                    target(&changed);
                }
            }
        }
    }
    remove_scratch_files().unwrap();
}
