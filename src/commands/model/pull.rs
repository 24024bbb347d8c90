//! `orchestrate model pull`: prints the model's folder on stdout, for a pipe, and the progress on stderr.

use anyhow::Result;
use clap::Args;
use model_files::hub::Repository;

use crate::commands::{download, output};
use crate::shell::Usage;

#[derive(Debug, Args)]
pub struct PullArgs {
    /// `OWNER/NAME`, with `@REVISION` for a revision other than `main`
    #[arg(value_name = "REPO[@REV]")]
    pub repo: String,
    /// Only files that this pattern matches (`*` stands for anything, `?` for one character); may be given several times.
    /// Unless given: config, tokenizer, and the safetensors or the only GGUF file. Pickles (`*.bin`, `*.pt`) and `*.h5` are
    /// never fetched
    #[arg(long = "file", value_name = "PATTERN")]
    pub files: Vec<String>,
}

pub fn pull(arguments: &PullArgs) -> Result<u8> {
    let repository = Repository::parse(&arguments.repo).map_err(|error| Usage(error.to_string()))?;
    let folder = download::fetch(&repository, &arguments.files)?;
    output::succeed(format!("{}\n", folder.display()))
}
