//! candle on the CPU. It also starts on a machine without CUDA's libraries.

fn main() -> std::process::ExitCode {
    candle_engine::run()
}
