//! Each kernel beside what this machine can do at most, measured in the same run: decode by bytes of weights per second,
//! prefill by operations per second.
//!
//! `lmrs-bench [--quick] [--threads N] [--levels avx2,avx512] [--formats bf16,q8_0] [--tokens 1,512] [--shape 2048x8192] [--file] [--best]`
//!
//! All cases take turns, and so do the probes of the machine's limits; a figure is the median of a case's turns, or with
//! `--best` the best of them, for a machine that others use too. Weights lie in so many copies that no cache holds them, on
//! large pages, or with `--file` in a mapped file.
#![expect(clippy::print_stdout, reason = "a program that prints a table")]
#![expect(unsafe_code, reason = "a file of our own as memory")]

use std::io::Write;
use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use lmrs::kernels::Level;
use lmrs::matrix::{Format, Matrix};
use lmrs::ops::Ops;
use lmrs::pool::Pool;
use lmrs::region::{NewRegion, Region};
use lmrs::rows::Rows;
use machine_limits::{Asked, Limits, buffer_bytes, probe};

/// `(outputs, inputs)` of llama-3.2-1b.
const SHAPES: [(usize, usize); 4] = [(2048, 2048), (8192, 2048), (2048, 8192), (128_256, 2048)];
const FORMATS: [(&str, Format); 7] = [
    ("f32", Format::F32),
    ("f16", Format::F16),
    ("bf16", Format::Bf16),
    ("q8_0", Format::Q8_0),
    ("q4_0", Format::Q4_0),
    ("q4_k", Format::Q4K),
    ("q6_k", Format::Q6K),
];
/// All copies of a matrix: beyond any cache that this was tried on.
const WEIGHTS_BYTES: usize = 256 << 20;
/// Of weights in one turn of a decode, at least, so that a turn takes milliseconds.
const TURN_BYTES: usize = 64 << 20;

struct Asking {
    quick: bool,
    file: bool,
    best: bool,
    threads: usize,
    levels: Vec<Level>,
    formats: Vec<(&'static str, Format)>,
    tokens: Vec<usize>,
    shapes: Vec<(usize, usize)>,
}

fn main() -> Result<()> {
    let asking = Asking::from_arguments()?;
    let weights = Weights::new(&asking)?;
    let mut cases = cases(&asking, &weights);
    let rounds = if asking.quick { 5 } else { 15 };
    let mut limits = Vec::new();
    for round in 0..rounds {
        // Where the machine is not quiet, a limit is found between the turns or not at all.
        if round % 5 == 0 {
            limits.push(probe(&Asked {
                threads: vec![u32::try_from(asking.threads)?],
                buffer_bytes: buffer_bytes(None, None).unwrap_or(0),
                budget: Duration::from_millis(500),
            }));
        }
        for case in &mut cases {
            case.turn();
        }
    }
    print(&cases, &Limits::best(&limits).context("no limit was probed")?, &asking);
    Ok(())
}

/// One kernel at one shape.
struct Case {
    format: &'static str,
    level: Level,
    matrices: Vec<Matrix>,
    x: Rows,
    out: Rows,
    ops: Ops,
    next: usize,
    best: bool,
    /// Seconds for one product, of each one.
    turns: Vec<f64>,
}

impl Case {
    fn turn(&mut self) {
        let each = self.matrices[0].bytes();
        let products = if self.x.tokens() > 8 { 1 } else { TURN_BYTES.div_ceil(each) };
        for _ in 0..products {
            let began = Instant::now();
            let matrix = &self.matrices[self.next];
            self.ops.multiply(&self.x, &mut [(matrix, &mut self.out)]);
            self.next = (self.next + 1) % self.matrices.len();
            self.turns.push(began.elapsed().as_secs_f64());
        }
    }

    fn seconds(&self) -> f64 {
        let mut turns = self.turns.clone();
        turns.sort_by(f64::total_cmp);
        turns[if self.best { 0 } else { turns.len() / 2 }]
    }

    fn bytes_per_second(&self) -> f64 {
        self.matrices[0].bytes() as f64 / self.seconds()
    }

    fn operations_per_second(&self) -> f64 {
        2.0 * (self.x.tokens() * self.matrices[0].outputs * self.matrices[0].inputs) as f64 / self.seconds()
    }
}

fn cases(asking: &Asking, weights: &Weights) -> Vec<Case> {
    let mut cases = Vec::new();
    for &(format, kind) in &asking.formats {
        for &(outputs, inputs) in &asking.shapes {
            for &tokens in &asking.tokens {
                for &level in &asking.levels {
                    let matrices = weights.matrices(kind, outputs, inputs);
                    let mut x = Rows::new(tokens, inputs);
                    for (at, number) in x.all_mut().iter_mut().enumerate() {
                        *number = (at * 7919 % 2003) as f32 / 1000.0 - 1.0;
                    }
                    let ops = Ops::new(Pool::new(asking.threads), level);
                    let (out, best) = (Rows::default(), asking.best);
                    cases.push(Case {
                        format,
                        level,
                        matrices,
                        x,
                        out,
                        ops,
                        next: 0,
                        best,
                        turns: Vec::new(),
                    });
                }
            }
        }
    }
    cases
}

fn print(cases: &[Case], limits: &Limits, asking: &Asking) {
    let reads = limits.reads.iter().filter_map(|reads| Some((reads.bytes_per_second()?, reads.streams)));
    let (read, streams) = reads.max_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or((f64::NAN, 0));
    println!("{} threads. Limits: reads {:.1} GB/s ({streams} streams a thread)", asking.threads, read / 1e9);
    for unit in &limits.units {
        let loads = if unit.loads { " with loads" } else { "" };
        println!("{}{loads} {:.0} Gop/s", unit.unit, unit.per_second().unwrap_or(f64::NAN) / 1e9);
    }
    println!("\n| format | shape | tokens | level | us | GB/s | of reads | Gop/s | of unit |");
    println!("|---|---|--:|---|--:|--:|--:|--:|--:|");
    for case in cases {
        let matrix = &case.matrices[0];
        let names = units(case.level, matrix.format);
        let unit = names.iter().find_map(|name| {
            limits
                .units
                .iter()
                .filter(|unit| unit.unit == *name)
                .filter_map(|unit| unit.per_second())
                .reduce(f64::min)
        });
        println!(
            "| {} | {}x{} | {} | {} | {:.0} | {:.1} | {:.0} % | {:.0} | {:.0} % |",
            case.format,
            matrix.outputs,
            matrix.inputs,
            case.x.tokens(),
            case.level,
            case.seconds() * 1e6,
            case.bytes_per_second() / 1e9,
            case.bytes_per_second() / read * 100.0,
            case.operations_per_second() / 1e9,
            case.operations_per_second() / unit.unwrap_or(f64::NAN) * 100.0,
        );
    }
}

/// The unit that a kernel's products are held against, the first of these that was probed: of a tile's rate, that with loads.
fn units(level: Level, format: Format) -> &'static [&'static str] {
    match (level.word(), format) {
        ("amx", Format::F32 | Format::F16) | ("portable" | "avx2", _) => &["f32_fma"],
        ("amx", _) => &["amx_bf16"],
        ("avx512", Format::Bf16) => &["avx512_bf16", "f32_fma"],
        ("avx512", format) if format.is_panels() => &["avx512_vnni", "f32_fma"],
        _ => &["f32_fma"],
    }
}

/// Memory that all matrices are made of: of whatever format, the same bytes.
struct Weights(Region);

impl Weights {
    fn new(asking: &Asking) -> Result<Self> {
        let largest = |&(outputs, inputs): &(usize, usize)| {
            let bytes = |(_, format): &(&str, Format)| Matrix::bytes_for(*format, outputs, inputs);
            asking.formats.iter().map(bytes).max().unwrap_or(0)
        };
        let bytes = asking.shapes.iter().map(largest).max().unwrap_or(0).max(WEIGHTS_BYTES);
        let mut region = NewRegion::new(bytes)?;
        for (at, bytes) in region.bytes_mut().chunks_mut(2).enumerate() {
            // As bf16 0.5 to 2, as f16 2 and more, as scales no infinity.
            let bits = (0x3f00 + (at * 31 % 256) as u16).to_le_bytes();
            bytes.copy_from_slice(&bits[..bytes.len()]);
        }
        let region = region.finish();
        if !asking.file {
            return Ok(Self(region));
        }
        let path = std::env::temp_dir().join(format!("lmrs-bench-{}", std::process::id()));
        let mut file = std::fs::File::options().read(true).write(true).create_new(true).open(&path)?;
        std::fs::remove_file(&path)?;
        file.write_all(region.bytes()).with_context(|| format!("writing `{}`", path.display()))?;
        // SAFETY: the file has no name any more, so nobody else can change it.
        Ok(Self(Region::of_file(unsafe { memmap2::Mmap::map(&file)? })))
    }

    /// As many as there is room for, one behind the other.
    fn matrices(&self, format: Format, outputs: usize, inputs: usize) -> Vec<Matrix> {
        let bytes = Matrix::bytes_for(format, outputs, inputs);
        let copies = (self.0.bytes().len().min(WEIGHTS_BYTES) / bytes).max(1);
        let matrix =
            |copy| Matrix::new(format, outputs, inputs, self.0.part(copy * bytes..(copy + 1) * bytes));
        (0..copies).map(matrix).collect()
    }
}

impl Asking {
    fn from_arguments() -> Result<Self> {
        let mut asking = Self {
            quick: false,
            file: false,
            best: false,
            threads: std::thread::available_parallelism()?.get(),
            levels: vec![Level::best()],
            formats: FORMATS[..3].to_vec(),
            tokens: vec![1, 4, 8, 512],
            shapes: SHAPES.to_vec(),
        };
        let mut arguments = std::env::args().skip(1);
        while let Some(argument) = arguments.next() {
            let mut list = || arguments.next().with_context(|| format!("nothing after `{argument}`"));
            match argument.as_str() {
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
                    bail!("`{other}` is no option\nhint: lmrs-bench --quick --formats bf16 --tokens 1,512")
                }
            }
        }
        if asking.quick {
            asking.shapes.truncate(3);
        }
        Ok(asking)
    }
}

fn number(text: &str) -> Result<usize> {
    let number: usize = text.parse().with_context(|| format!("`{text}` is no number"))?;
    if number == 0 {
        bail!("`0` of what is measured");
    }
    Ok(number)
}

fn format(word: &str) -> Result<(&'static str, Format)> {
    let known = FORMATS.iter().find(|(name, _)| *name == word).copied();
    known.with_context(|| {
        let names = FORMATS.map(|(name, _)| name).join("`, `");
        format!("`{word}` is no format\nhint: one of `{names}`")
    })
}
