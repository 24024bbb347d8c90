//! candle on the CPU: starts anywhere.

fn main() -> std::process::ExitCode {
    candle_engine::run()
}
