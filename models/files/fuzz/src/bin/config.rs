#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    model_files_fuzz::config(bytes);
});

#[cfg(not(fuzzing))]
fn main() -> anyhow::Result<()> {
    model_files_fuzz::read_named_files(model_files_fuzz::config)
}
