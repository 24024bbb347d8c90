//! candle on CUDA: does not start without CUDA's libraries, and is a program of its own for that reason alone.

fn main() -> std::process::ExitCode {
    candle_engine::run()
}
