//! Burn on the CPU.

fn main() -> std::process::ExitCode {
    burn_engine::run()
}
