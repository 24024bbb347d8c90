//! candle on the CPU: starts on any machine.

fn main() -> std::process::ExitCode {
    candle_engine::run()
}
