//! Burn on CUDA. It is a separate program, because its build needs the network and takes longer.

fn main() -> std::process::ExitCode {
    burn_engine::run()
}
