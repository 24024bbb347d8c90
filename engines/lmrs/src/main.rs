//! The program: requests on stdin, answers on stdout.

fn main() -> std::process::ExitCode {
    engine_kit::serve(lmrs::engine::Lmrs)
}
