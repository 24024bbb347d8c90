//! The arguments: which kernels are measured, and how.

use std::str::FromStr;

use anyhow::{Context, Result, bail};
use lmrs::formats::{FORMATS, Format};
use lmrs::kernels::Level;

const HELP: &str = "\
lmrs-bench: the speed of each kernel of lmrs, compared with the limits of this machine

  cargo run --release -p lmrs --example lmrs-bench [-- OPTIONS]

Default: every kernel, with products at the shapes of llama-3.2-1b, in some minutes.

  --quick                     fewer shapes and rounds
  --only products|attention   kernels of one kind; default: both
  --threads N                 the number of threads; default: all processors of this process
  --levels avx2,avx512        the levels of the kernels; default: the best of this processor
  --formats bf16,q8_0         some of FORMATS; default: all
  --tokens 1,512              the numbers of tokens in a product; default: 1,4,8,512
  --shape 2048x8192           outputs by inputs of one matrix; default: those of llama-3.2-1b
  --file                      weights in a mapped file instead of large pages, except bf16z
  --best                      report the shortest time instead of the median, for a shared machine

The column `us` is the time of one product, or of one layer's attention (shape: `heads/heads of keys x dimensions`). `of reads`
is the share of the fastest plain read of memory with the same threads, and `of unit` the share of the multiplying unit's peak.
Both limits are probed between the turns of the same run. Reads limit a product with 1 token; the unit limits a product with 512.
Weights, keys and values come from memory, not from a cache.
";

pub fn help() -> String {
    HELP.replace("FORMATS", &format_names(", "))
}

fn format_names(between: &str) -> String {
    FORMATS.iter().map(|format| format.name).collect::<Vec<_>>().join(between)
}

/// `(outputs, inputs)` of llama-3.2-1b.
const SHAPES: [(usize, usize); 4] = [(2048, 2048), (8192, 2048), (2048, 8192), (128_256, 2048)];

pub struct Arguments {
    quick: bool,
    pub measures_products: bool,
    pub measures_attention: bool,
    pub uses_file: bool,
    pub prints_best: bool,
    pub threads: usize,
    pub levels: Vec<Level>,
    pub formats: Vec<&'static Format>,
    pub tokens: Vec<usize>,
    pub shapes: Vec<(usize, usize)>,
}

impl Arguments {
    /// Parses the arguments; `None` if help was requested.
    pub fn from_arguments(mut arguments: impl Iterator<Item = String>) -> Result<Option<Self>> {
        let mut parsed = Self {
            quick: false,
            measures_products: true,
            measures_attention: true,
            uses_file: false,
            prints_best: false,
            threads: std::thread::available_parallelism()?.get(),
            levels: vec![Level::best()],
            formats: FORMATS.to_vec(),
            tokens: vec![1, 4, 8, 512],
            shapes: SHAPES.to_vec(),
        };
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().with_context(|| format!("`{argument}` has no value"));
            match argument.as_str() {
                "--help" | "-h" => return Ok(None),
                "--only" => match value()?.as_str() {
                    "products" => parsed.measures_attention = false,
                    "attention" => parsed.measures_products = false,
                    other => {
                        bail!("unknown kind of kernels `{other}`\nhint: --only products, or --only attention")
                    }
                },
                "--quick" => parsed.quick = true,
                "--file" => parsed.uses_file = true,
                "--best" => parsed.prints_best = true,
                "--threads" => parsed.threads = parse_number(&value()?)?,
                "--levels" => {
                    parsed.levels = value()?.split(',').map(Level::from_str).collect::<Result<_>>()?
                }
                "--tokens" => parsed.tokens = value()?.split(',').map(parse_number).collect::<Result<_>>()?,
                "--formats" => {
                    parsed.formats = value()?.split(',').map(parse_format).collect::<Result<_>>()?
                }
                "--shape" => {
                    let text = value()?;
                    let (outputs, inputs) = text.split_once('x').with_context(|| {
                        format!("`{text}` is not a shape: expected outputs x inputs, such as `2048x8192`")
                    })?;
                    parsed.shapes = vec![(parse_number(outputs)?, parse_number(inputs)?)];
                }
                other => bail!("unknown option `{other}`\nhint: --help"),
            }
        }
        if parsed.quick {
            parsed.shapes.truncate(3); // without the largest matrix
        }
        Ok(Some(parsed))
    }

    pub fn rounds(&self) -> usize {
        if self.quick { 5 } else { 15 }
    }
}

fn parse_number(text: &str) -> Result<usize> {
    let number: usize = text.parse().with_context(|| format!("`{text}` is not a number"))?;
    if number == 0 {
        bail!("expected a number above 0");
    }
    Ok(number)
}

fn parse_format(word: &str) -> Result<&'static Format> {
    Format::from_name(word).with_context(|| {
        let names = format_names("`, `");
        format!("unknown format `{word}`\nhint: one of `{names}`")
    })
}
