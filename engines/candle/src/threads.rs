//! How many threads candle computes with.
//!
//! candle has two pools that matter here: rayon's global one (gemm and elementwise work) and its own barrier pool
//! (copies, quantised products). Each takes its size from the environment when it is first used and keeps it for the
//! life of the process. So the first load decides, and a later load that asks for another number is refused.
//!
//! The number always ends up in the environment, also where nobody asked for one: candle asks for it at every matrix
//! product, and reads `/proc/cpuinfo` each time where the environment is silent.

use std::sync::OnceLock;

use protocol::Failed;

use crate::failure::unsupported;

/// What both pools read. candle prefers the second name for its barrier pool.
const VARIABLES: [&str; 2] = ["RAYON_NUM_THREADS", "CANDLE_NUM_THREADS"];

static IN_EFFECT: OnceLock<u32> = OnceLock::new();

/// Sizes the pools at the first load, and says what is in effect. `None` leaves the number to candle: what the
/// environment says, else one for each physical core.
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
    // SAFETY: the only other thread of this process at its first load is the kit's reader; it touches the environment,
    // if at all, through `std::env`, which locks it. No C library that reads it is in use yet.
    unsafe { std::env::set_var(name, threads.to_string()) };
}
