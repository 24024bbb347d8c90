//! The words after `orchestrate model`: types only.

use std::path::PathBuf;

use clap::{Args, Subcommand};

#[derive(Debug, Subcommand)]
pub enum ModelCommand {
    /// Make a model of a real shape with random weights: same speed, no download, the same bytes on every machine
    Synth(SynthArgs),
    /// Write a model in another format or another dtype
    Convert(ConvertArgs),
    /// Fetch a model from the Hugging Face hub
    Pull(PullArgs),
    /// List the models that are here, and those that can be synthesised
    List,
    /// Say what a model is: architecture, sizes, bytes moved for each token, memory for each context length
    Info(InfoArgs),
    /// Ask an engine in f32 what it says of held-out text, and keep that beside the model: runs then need not ask it
    Witness(WitnessArgs),
    /// The conversions that runs made for engines that need another format
    Cache(CacheArgs),
}

#[derive(Debug, Args)]
pub struct SynthArgs {
    /// A shape by name (see `orchestrate model list`)
    #[arg(required_unless_present = "config")]
    pub name: Option<String>,
    /// A shape of your own: a `config.json` as Hugging Face writes it
    #[arg(long, value_name = "FILE", conflicts_with = "name")]
    pub config: Option<PathBuf>,
    /// The folder to make; for GGUF a file that ends in `.gguf`, or the folder to put it in
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// safetensors: f32, bf16, f16; gguf: those, and q8_0, q4_0, q4_k
    #[arg(long, default_value = "bf16")]
    pub dtype: String,
    /// `safetensors` or `gguf`
    #[arg(long, default_value = "safetensors")]
    pub format: String,
    /// Other seeds make other weights
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
}

#[derive(Debug, Args)]
pub struct ConvertArgs {
    /// A model folder, a `.gguf` file, or `embedded`
    #[arg(value_name = "IN")]
    pub model: String,
    /// `safetensors` or `gguf`
    #[arg(long, value_name = "FORMAT")]
    pub to: String,
    /// The matrices' dtype; unless given, the one they have
    #[arg(long)]
    pub dtype: Option<String>,
    /// Where it goes; unless given beside the model, or here when the model was not named by its path
    #[arg(long, value_name = "PATH")]
    pub out: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct PullArgs {
    /// `OWNER/NAME`, with `@REVISION` for another than `main`
    #[arg(value_name = "REPO[@REV]")]
    pub repo: String,
    /// Only files that this pattern matches (`*` stands for anything, `?` for one character); may be given several times.
    /// Unless given: config, tokenizer, and the safetensors or the only GGUF file. Pickles (`*.bin`, `*.pt`) and `*.h5` are
    /// never fetched
    #[arg(long = "file", value_name = "PATTERN")]
    pub files: Vec<String>,
}

#[derive(Debug, Args)]
pub struct InfoArgs {
    /// A model folder, a `.gguf` file, a repository that was pulled, or `embedded`
    #[arg(value_name = "PATH", default_value = model_files::embedded::NAME)]
    pub model: String,
    /// What it is expected to be: `llama`, `gpt2`; anything else is an error
    #[arg(long, value_name = "ARCHITECTURE")]
    pub model_type: Option<String>,
    /// Also read all weights and print the hash that names them
    #[arg(long)]
    pub identity: bool,
    /// As JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct WitnessArgs {
    /// A model folder, or `embedded`
    pub model: String,
    /// Who is asked; unless given, the reference engine of the tree
    #[arg(long, value_name = "ENGINE")]
    pub witness: Option<String>,
    /// Make it anew where there is one
    #[arg(long)]
    pub force: bool,
    /// Where the record of what it was asked goes
    #[arg(long, value_name = "DIR")]
    pub results: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[group(multiple = false)]
pub struct CacheArgs {
    /// Say what is in the cache (the default)
    #[arg(long)]
    pub list: bool,
    /// Keep it below this size (`20GB`), now and from now on; what was not used for longest goes first
    #[arg(long, value_name = "SIZE")]
    pub limit: Option<String>,
    /// Remove everything in it
    #[arg(long)]
    pub clear: bool,
}
