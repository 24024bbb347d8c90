//! Writes the seeds into the given folder.

fn main() -> anyhow::Result<()> {
    let corpus = std::env::args_os().nth(1).ok_or_else(|| anyhow::anyhow!("usage: seeds FOLDER"))?;
    model_files_fuzz::write_seeds(corpus.as_ref())
}
