//! The selection of measurements, from the command line.

use std::str::FromStr;

use anyhow::{Context, Result, bail};
use lmrs::formats::{FORMATS, Format};
use lmrs::kernels::Level;

const HELP: &str = "\
lmrs-bench: how fast each kernel of lmrs is, beside what this machine can do at most

  cargo run --release -p lmrs --example lmrs-bench [-- OPTIONS]

Without options: every kernel at the shapes of llama-3.2-1b, some minutes.

  --quick                     fewer shapes and rounds
  --only products|attention   one of both kinds of kernels
  --threads N                 as many threads; all processors of this process without it
  --levels avx2,avx512        kernels for less than this processor has, or for several; the best without it
  --formats bf16,q8_0         FORMATS; all without it
  --tokens 1,512              tokens that are multiplied together; 1,4,8,512 without it
  --shape 2048x8192           outputs by inputs of one matrix, in place of llama-3.2-1b's
  --file                      weights lie in a mapped file, not on large pages
  --best                      the best turn of each counts, not the median: for a machine that others use too

In the table `us` is one product, or one layer's attention; `of reads` is the share of the fastest plain read of memory, with as
many threads; `of unit` the share of what the unit that multiplies can do, both probed between the turns of the same run. One
token is bound by reads, 512 by the unit. Weights, keys and values come from memory, not from a cache.
";

pub fn help() -> String {
    HELP.replace("FORMATS", &format_names(", "))
}

fn format_names(between: &str) -> String {
    FORMATS.iter().map(|format| format.name).collect::<Vec<_>>().join(between)
}

/// `(outputs, inputs)` of llama-3.2-1b.
const SHAPES: [(usize, usize); 4] = [(2048, 2048), (8192, 2048), (2048, 8192), (128_256, 2048)];
pub struct Asking {
    quick: bool,
    pub products: bool,
    pub attention: bool,
    pub file: bool,
    pub best: bool,
    pub threads: usize,
    pub levels: Vec<Level>,
    pub formats: Vec<&'static Format>,
    pub tokens: Vec<usize>,
    pub shapes: Vec<(usize, usize)>,
}

impl Asking {
    /// Parses the arguments; `None` if help was requested.
    pub fn from_arguments(mut arguments: impl Iterator<Item = String>) -> Result<Option<Self>> {
        let mut asking = Self {
            quick: false,
            products: true,
            attention: true,
            file: false,
            best: false,
            threads: std::thread::available_parallelism()?.get(),
            levels: vec![Level::best()],
            formats: FORMATS.to_vec(),
            tokens: vec![1, 4, 8, 512],
            shapes: SHAPES.to_vec(),
        };
        while let Some(argument) = arguments.next() {
            let mut list = || arguments.next().with_context(|| format!("nothing after `{argument}`"));
            match argument.as_str() {
                "--help" | "-h" => return Ok(None),
                "--only" => match list()?.as_str() {
                    "products" => asking.attention = false,
                    "attention" => asking.products = false,
                    other => bail!("`{other}` is no kind of kernels\nhint: --only attention"),
                },
                "--quick" => asking.quick = true,
                "--file" => asking.file = true,
                "--best" => asking.best = true,
                "--threads" => asking.threads = number(&list()?)?,
                "--levels" => {
                    asking.levels = list()?.split(',').map(Level::from_str).collect::<Result<_>>()?
                }
                "--tokens" => asking.tokens = list()?.split(',').map(number).collect::<Result<_>>()?,
                "--formats" => asking.formats = list()?.split(',').map(format).collect::<Result<_>>()?,
                "--shape" => {
                    let text = list()?;
                    let (outputs, inputs) = text.split_once('x').context("a shape is like `2048x8192`")?;
                    asking.shapes = vec![(number(outputs)?, number(inputs)?)];
                }
                other => {
                    bail!("`{other}` is no option\nhint: --help says what is")
                }
            }
        }
        if asking.quick {
            asking.shapes.truncate(3);
        }
        Ok(Some(asking))
    }

    pub fn rounds(&self) -> usize {
        if self.quick { 5 } else { 15 }
    }
}

fn number(text: &str) -> Result<usize> {
    let number: usize = text.parse().with_context(|| format!("`{text}` is no number"))?;
    if number == 0 {
        bail!("`0` of what is measured");
    }
    Ok(number)
}

fn format(word: &str) -> Result<&'static Format> {
    Format::named(word).with_context(|| {
        let names = format_names("`, `");
        format!("`{word}` is no format\nhint: one of `{names}`")
    })
}
