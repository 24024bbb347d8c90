//! Passes the `target-cpu` of this build to `facts::build`: the compiler does not show it to the code.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=CARGO_ENCODED_RUSTFLAGS");
    let flags = std::env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    let cpu = flags.split('\x1f').filter_map(|flag| flag.split_once("target-cpu=")).next_back();
    if let Some((_, cpu)) = cpu {
        println!("cargo::rustc-env=ENGINE_KIT_TARGET_CPU={cpu}");
    }
}
