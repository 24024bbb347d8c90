//! The number of threads of candle.
//!
//! candle has two pools that matter here: rayon's global one (gemm and elementwise work) and its own barrier pool (copies,
//! quantised products). Each takes its size from the environment at first use and keeps it for the life of the process. So
//! the first load decides, and a later load with another number is refused.
//!
//! The number is always written to the environment: candle reads it at every matrix product, and would otherwise read
//! `/proc/cpuinfo` each time.

use std::sync::OnceLock;

use protocol::Failed;

use crate::failure::unsupported;

/// The variables of both pools. candle prefers the second for its barrier pool.
const VARIABLES: [&str; 2] = ["RAYON_NUM_THREADS", "CANDLE_NUM_THREADS"];

static IN_EFFECT: OnceLock<u32> = OnceLock::new();

/// Sizes the pools at the first load, and returns the number in effect. With `None` candle decides: the environment's
/// number, else one thread for each physical core.
pub fn settle(asked: Option<u32>) -> Result<u32, Failed> {
    let in_effect = *IN_EFFECT.get_or_init(|| {
        match asked {
            Some(asked) => VARIABLES.map(|name| set_variable(name, asked as usize)),
            None => [set_variable(VARIABLES[0], candle_core::utils::get_num_threads()), ()],
        };
        candle_core::utils::init_global_threadpool();
        u32::try_from(rayon::current_num_threads()).unwrap_or(u32::MAX)
    });
    match asked {
        Some(asked) if asked != in_effect => {
            Err(unsupported(format!("{asked} threads: this process has {in_effect} since its first load"))
                .hint("candle's pools keep their size: start another process for another number of threads"))
        }
        _ => Ok(in_effect),
    }
}

#[expect(unsafe_code, reason = "candle takes the number of threads from the environment alone")]
fn set_variable(name: &str, threads: usize) {
    // SAFETY: at the first load the only other thread is the kit's reader, which uses the environment only through the lock
    // of `std::env`. No C library that reads it is in use yet.
    unsafe { std::env::set_var(name, threads.to_string()) };
}
