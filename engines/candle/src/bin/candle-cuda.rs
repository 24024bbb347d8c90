//! candle on CUDA. It is a separate program because it does not start without CUDA's libraries.

fn main() -> std::process::ExitCode {
    candle_engine::run()
}
